"""Functions of C++ extensions take pointers from tensors without an operator: beside such an extension nothing is
deferred. An extension cannot be unloaded, so each test has a process of its own.
"""

from __future__ import annotations

import subprocess
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from grape.native import build
from tests.processes import lines_of
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

READS = """
    #include <Python.h>
    extern "C" int aoti_torch_get_data_ptr(void* tensor, void** data);  // of torch's C interface
    static PyObject* first(PyObject*, PyObject* tensor) {
      PyObject* address = PyObject_GetAttrString(tensor, "_cdata");
      void* impl = PyLong_AsVoidPtr(address);
      void* data = nullptr;
      Py_DECREF(address);
      aoti_torch_get_data_ptr(&impl, &data);
      return PyFloat_FromDouble(*static_cast<float*>(data));
    }
    static PyMethodDef methods[] = {{"first", first, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
"""
COUNTS = """
    #include <Python.h>
    static PyObject* count(PyObject*, PyObject*) { return PyLong_FromLong(1); }
    static PyMethodDef methods[] = {{"count", count, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
"""
REGISTERS = """
    #include <Python.h>
    static PyMethodDef methods[] = {{nullptr, nullptr, 0, nullptr}};
"""
MODULE = """
    static PyModuleDef_Slot slots[] = {{0, nullptr}};
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, 0, methods, slots};
    extern "C" __attribute__((visibility("default"))) PyObject* PyInit_NAME() { return PyModuleDef_Init(&definition); }
"""
Say = Callable[[str], list[str]]
REASON = "functions of C++ extensions may read results before they are issued: "


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `reads`, `registers`, which links torch as well, and `counts`, which does not."""
    folder, compiler = tmp_path_factory.mktemp("extensions"), build._compiler()
    assert compiler is not None
    for name, functions in {"reads": READS, "registers": REGISTERS, "counts": COUNTS}.items():
        source = folder / f"{name}.cpp"
        source.write_text(textwrap.dedent(functions + MODULE.replace("NAME", name)))
        linked = [] if name == "counts" else ["-Wl,--no-as-needed", *build._libraries()]
        made = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        command = [*compiler, *build._flags(), str(source), "-o", str(made), *linked]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


@pytest.fixture
def say(extensions: Path) -> Say:
    """The lines that a process prints behind a preamble."""
    return lambda code: lines_of(textwrap.dedent(PREAMBLE) + textwrap.dedent(code), extensions)


PREAMBLE = """
    import torch, importlib.util, sys, threading
    from importlib.machinery import ExtensionFileLoader
    from grape.native import Unavailable
    from grape.streams import Settings, Stream, open_stream, shared
    plain = ExtensionFileLoader.exec_module

    def as_cpp_extension_does(name):
        spec = importlib.util.spec_from_file_location(name, importlib.util.find_spec(name).origin)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def chain(x):
        return torch.tanh(x * 1.5 + 0.25) - x.mean()

    def loop(read, n=40):
        x, found = torch.ones(4), []
        for _ in range(n):
            x = chain(x)
            found.append(read(x))
        return found

    def nothing(x):
        return None
"""


@pytest.mark.parametrize("load", ["import reads", "as_cpp_extension_does('reads')"])
def test_loaded_before(say: Say, load: str) -> None:
    assert say(f"{load}\nprint(open_stream().reason)") == [REASON + "reads"]


def test_nothing_is_expected_of_streams_beside_one(say: Say) -> None:
    assert say("print(shared.prepare())\nimport reads\nprint(shared.prepare().reason)") == ["None", REASON + "reads"]


def test_what_has_no_function_or_no_torch_is_harmless(say: Say) -> None:
    said = say("""
        import registers
        with open_stream() as stream:
            loop(nothing, 2500)
            import counts
            loop(nothing, 2500)
            print(stream.stopped, stream.evidence().matched > 200)
        registers.function = print
        print(open_stream().reason)
        sys.modules["tvm_ffi"] = sys
        print(open_stream().reason)
    """)
    assert said == [" True", REASON + "registers", REASON + "registers, tvm_ffi"]


@pytest.mark.parametrize(
    ("device", "load"),
    [
        ("cpu", "import reads"),
        ("pretended", "sys.modules['reads'] = as_cpp_extension_does('reads')"),
        ("cpu", "thread = threading.Thread(target=__import__, args=['reads']); thread.start(); thread.join()"),
    ],
    ids=["import", "as cpp_extension", "in a thread"],
)
def test_loaded_while_a_stream_is_open(say: Say, device: str, load: str) -> None:
    said = say(f"""
        stream = open_stream(Settings(shortest=1, hot=2, device="{device}", price=0))
        loop(nothing, 2500)
        before = stream.evidence()
        assert before.matched > 20
        {load}
        assert ExtensionFileLoader.exec_module is plain
        import reads
        found = loop(reads.first)
        print(stream.stopped)
        print(stream.evidence().seen == before.seen, stream.resume().reason == stream.stopped)
        stream.close()
        print(found == loop(reads.first), torch._C._dispatch_tls_is_dispatch_key_included("Fake"))
    """)
    assert said == [REASON + "reads", "True True", "True False"]


def test_loaded_during_a_pause(say: Say) -> None:
    said = say("""
        shared.hold("it")
        first = shared.enter("it")
        loop(nothing, 2500)
        shared.leave()
        import reads
        print(shared.stream is first, shared.enter("it").reason, shared.stream)
        print(shared.evidence("it").seen > 100, first.is_open)
    """)
    assert said == [f"True {REASON}reads None", "True False"]


def test_loaded_in_a_call_of_a_function(say: Say) -> None:
    said = say("""
        import grape
        def work(last):
            found = loop(nothing, 2500)
            if last:
                import reads
                inner(4)
                print(inner.as_written)
                return loop(reads.first)
        inner = grape.stream(lambda n: loop(nothing, n))
        with grape.stream(work) as step:
            step(False)
            found = step(True)
            print(step.as_written, shared.stream, step.evidence().matched > 100)
            print(found == step(True), step.as_written)
    """)
    reason = REASON + "reads"
    assert said == [reason, "None None True", reason, f"True {reason}"]


def test_loaded_in_a_cell(say: Say) -> None:
    said = say("""
        import grape
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.user_ns |= {"loop": loop, "nothing": nothing}
        shell.run_cell("%load_ext grape")
        def run(cell):
            shell.run_cell("%%grape --engine streams --no-widget\\n" + cell).raise_error()
            return grape.last.to_dict()
        before = sys.stdout
        sys.stdout = sys.stderr
        one = run("loop(nothing, 2500)\\nimport reads\\nfound = loop(reads.first)\\n")
        other = run("again = loop(reads.first)\\n")
        sys.stdout = before
        print(one["cell"]["notes"][-1])
        print(one["streams"][0]["matched"] > 50, shell.user_ns["found"] == shell.user_ns["again"])
        print(other["verdict"])
    """)
    assert said[0] == "what came after an import ran as written: " + REASON + "reads"
    assert said[1] == "True True"
    assert "left as written: " + REASON[:60] in said[2]
