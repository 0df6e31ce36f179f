"""Which cells start processes that do their work."""

from __future__ import annotations

import pytest
import torch.multiprocessing

from grape.rewrite.starts import may_be_a_rank, starts_processes

FORK = [
    "notebook_launcher(train, num_processes=2)",
    "accelerate.notebook_launcher(train)",
    "from accelerate import notebook_launcher as go\ngo(train)",
    "mp.start_processes(train, nprocs=2, start_method='fork')",
    "mp.start_processes(train, nprocs=2, start_method=method)",
    "elastic_launch(config, train)(1)",
    "forks()",
    "mp.spawn(train)\nforks()",
]
SPAWN = [
    "import torch.multiprocessing as mp\nmp.spawn(train, nprocs=2)",
    "torch.multiprocessing.spawn(train, nprocs=2)",
    "from torch.multiprocessing import spawn\nspawn(train)",
    "if __name__ == '__main__':\n    mp.start_processes(train, nprocs=2)",
    "%time mp.spawn(train)\nmain()",
    "deep()",
]
NO = [
    "train()",
    "seeds = numpy.random.SeedSequence(0).spawn(4)",
    "spawn(3)",
    "rng.spawn(2)",
    "def f(:",
    "mp.Process(target=train).start()",
    "recursive()",
    "'mp.spawn(train)'",
    "notebook_launcher(train, num_processes=1)",
    "notebook_launcher(train, num_processes=ONE)",
]


@pytest.fixture
def notebook() -> dict[str, object]:
    namespace: dict[str, object] = {"mp": torch.multiprocessing}
    source = """
def train(): return sum([1, 2])
def main():
    def inner(): mp.spawn(train, nprocs=2)
    inner()
def deep(): return middle()
def middle(): return main()
def recursive(): return recursive()
def spawn(n): return n
def forks(): mp.start_processes(train, nprocs=2, start_method="fork")
ONE = 1
"""
    exec(source, namespace)
    return namespace


@pytest.mark.parametrize(("source", "how"), [*((one, "fork") for one in FORK), *((one, "spawn") for one in SPAWN)])
def test_cells_that_do(source: str, how: str, notebook: dict[str, object]) -> None:
    assert starts_processes(source, notebook) == how


@pytest.mark.parametrize("source", NO)
def test_cells_that_do_not(source: str, notebook: dict[str, object]) -> None:
    assert starts_processes(source, notebook) is None


def test_names_of_the_notebook_tell_what_they_are(notebook: dict[str, object]) -> None:
    assert starts_processes("spawn(train)", notebook | {"spawn": torch.multiprocessing.spawn})


RANKS = [
    "def work(rank): dist.init_process_group('gloo')",
    "def work(rank): make(rank)\ndef make(rank): return Net().to(f'cuda:{rank}')\nclass Net: pass",
    "def work(rank): return make(rank)\ndef make(rank, device='cpu'): return device",
    "class Work:\n    def __call__(self, rank): pass\nwork = Work()",
    "def work(rank):\n    def inner(): return torch.ones(1, device='cuda')\n    return inner()",
]


@pytest.mark.parametrize("source", RANKS)
def test_what_names_a_group_or_a_device_may_be_a_rank(source: str) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(source, namespace)
    assert may_be_a_rank(namespace["work"])


def test_workers_that_prepare_data_are_none() -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(
        "def work(rank, files): return [parse(file) for file in files[rank]]\ndef parse(file): return open(file)",
        namespace,
    )
    assert not may_be_a_rank(namespace["work"])


def test_objects_that_a_cell_names_are_asked_for_nothing() -> None:
    """They may note who asks, as a proxy does that is made when it is first used."""
    asked = []

    class Proxy:
        def __getattribute__(self, name: str) -> object:
            asked.append(name)
            return super().__getattribute__(name)

        def __call__(self, x: object) -> object:
            return x

    space: dict[str, object] = {"proxy": Proxy()}
    exec("def use(x):\n    return proxy(x)\n", space)
    assert starts_processes("use(1)\nproxy(2)\n", space) is None
    assert not asked
