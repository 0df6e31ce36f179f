"""What reads a tensor's values in passing: conversions, constructors, indices, files, other libraries. Each is called
where `t` is pending; `i` is an integer.
"""

from __future__ import annotations

import array
import copy
import decimal
import io
import json
import math
import operator
import pickle
import random
import statistics
import struct
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grape.streams import Settings
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import agrees, chain

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

PENDING = Settings(shortest=13, hot=2, settled=0, patience=0, price=0, doubt=0)
LIBRARIES = {
    **{"array": array, "copy": copy, "decimal": decimal, "io": io, "json": json, "math": math, "nn": nn, "np": np},
    **{"operator": operator, "pickle": pickle, "random": random, "statistics": statistics, "struct": struct},
    **{"torch": torch, "functional": nn.functional, "rnn": nn.utils.rnn, "data": torch.utils.data},
}
READS = """
math.sqrt(t[0])
math.floor(t[0] * 10)
math.isclose(t[0], t[1])
math.fsum([t[0], t[1]])
math.hypot(t[0], t[1])
statistics.mean(map(float, t))
decimal.Decimal(float(t[0]))
complex(t[0])
complex(t[0], t[1])
round(t[0].item(), 2)
f"{t[0]:.4f}"
"%.4f %s" % (t[0], t[0])
"{:.3e}".format(t[1].item())
str(t)
repr([t])
print(t, file=io.StringIO())
list(range(i))
[1] * i
list(range(20))[i]
list(range(20))[:i]
operator.index(i)
bin(i)
bool(t[0] > 0.5)
1 if t[0] > 0.5 else 2
not t[0] > 0.5
t[0] > 0.2 and t[1] > 0.2
0.1 < t[0] < 0.5
t[0] == t[0].item()
torch.is_nonzero(t[0])
t[0] in [t[1], t[0]]
[t[1], t[0]].index(t[0])
sum([t[0], t[1]])
max([t[2], t[1]])
sorted([t[2], t[0], t[1]])
min(range(4), key=lambda k: t[k])
any(x > 0.8 for x in t)
all(t > 0)
len(list(filter(lambda x: x > 0.3, t)))
[float(x) for x in reversed(t)]
[a * b for a, b in zip(t, t)]
len(t[t > 0.4])
t.view(2, 2).tolist()
[x.item() for x in t.unbind()]
np.array([t[0], t[1]])
np.asarray(t)
np.float32(t[0])
np.mean([t[0], t[1]])
np.stack([t, t])
np.sin(t)
np.append(np.zeros(1), t[0])
np.arange(20.0)[i]
np.from_dlpack(t)
t.__array__()
t.numpy().sum()
t.detach().numpy()[0]
t.numpy(force=True)[1]
memoryview(t.numpy()).tolist()
bytes(t.numpy())
array.array("f", t)
struct.pack("f", t[0])
json.dumps(t.tolist())
pickle.loads(pickle.dumps(t))
copy.deepcopy(t)
torch.save(t, io.BytesIO())
torch.from_dlpack(t)
torch.frombuffer(bytearray(t.numpy().tobytes()), dtype=torch.float32)
list(t.untyped_storage())
t.untyped_storage().clone().tolist()
t.storage().tolist()
float(t.storage()[1])
torch.tensor(t)
torch.tensor([t[0], 1.0, t[3]])
torch.tensor((t[0], t[1]))
torch.tensor([[t[0]], [t[1]]])
torch.FloatTensor([t[0], t[1]])
torch.LongTensor([i, 2])
torch.as_tensor(np.array([t[0], t[1]]))
torch.scalar_tensor(t[0])
t.new_full((2,), t[0].item())
t.new_tensor([t[0], t[1]])
nn.Parameter(torch.tensor([t[0]]))
torch.arange(20.0)[:i]
torch.arange(20.0)[i]
torch.arange(20.0).view(4, 5)[i % 4, i % 5]
torch.arange(20.0)[torch.tensor([i, i + 1])]
torch.linspace(t[0], t[1], 4)
torch.full((2,), t[0].item())
torch.arange(i)
torch.zeros(i)
torch.zeros(12).view(2 * (i * 0 + 1), -1)
torch.Size([i])
torch.zeros(1).expand(i + 1)
torch.zeros(2).repeat(i + 1)
torch.zeros(12).split([int(i), 12 - int(i)])
torch.arange(20.0).narrow(0, i, 2)
torch.ones(3, 3).tril(int(i) - 3)
torch.arange(3.0).clamp(max=float(t[0]))
torch.zeros(2).fill_(t[0])
torch.zeros(4).index_fill(0, torch.tensor([1]), t[0])
torch.zeros(2).add(torch.ones(2), alpha=float(t[0]))
torch.where(t > 0.5, t, 0.0)
t.masked_fill(t > 0.5, t[0].item())
operator.setitem(torch.zeros(2), 0, t[1])
operator.setitem(torch.zeros(3), slice(0, 2), t[:2])
operator.setitem(torch.zeros(4), t > 0.4, 1.0)
operator.setitem(np.zeros(2), 0, t[0])
torch.allclose(t, t)
torch.equal(t, t.clone())
torch.unique((t * 10).long())
torch.nonzero(t > 0.4)
torch.bincount((t * 10).long().clamp(0, 30))
torch.quantile(t, 0.5)
torch.repeat_interleave(t, (t * 3).long().clamp(0, 3))
torch.tensor_split(t, i.clamp(0, 3).view(1))
torch.gradient(t, spacing=float(t[0].abs() + 1))
functional.one_hot((t * 10).long().clamp(0, 9))
functional.interpolate(torch.zeros(1, 1, 4), scale_factor=float(i + 1))
rnn.pack_padded_sequence(t.view(2, 2, 1), torch.tensor([2, 1])).data
rnn.pack_padded_sequence(t.view(2, 2, 1), [2, i * 0 + 1]).data
data.TensorDataset(t)[int(i) % 4]
data.default_collate([t[0], t[1]])
data.default_collate([t[0].item(), 2.0])
(torch.manual_seed(i), torch.rand(1))
torch.rand(1, generator=torch.Generator().manual_seed(int(i)))
(random.seed(int(i)), random.random())
(torch.manual_seed(0), torch.multinomial(t, 2))
(torch.manual_seed(0), torch.bernoulli(t.clamp(0, 1)))
(torch.manual_seed(0), torch.distributions.Categorical(probs=t.abs()).sample())
(torch.manual_seed(0), torch.distributions.Normal(t[0], t[1].abs() + 1).sample())
"""


def told(value: Any) -> Any:
    """Tensors as they are; what has no equality of its own in words."""
    if isinstance(value, (list, tuple)):
        return [told(one) for one in value]
    return value if isinstance(value, (Tensor, float, int, complex)) else repr(value)


@pytest.mark.parametrize("read", READS.strip().splitlines())
def test_values_are_those_of_eager_code(read: str) -> None:
    code = compile(read, "<read>", "eval")

    def loop() -> list[Any]:
        x, out = torch.linspace(0.1, 0.9, 4), []
        for _ in range(30):
            i = (
                x[1] * 10
            ).long()  # which runs as written on the CPU, and is computed in front of what is pending there
            x = x * 0.99
            t = (chain(x) * 2 + x).abs() + 0.05
            out.append(told(eval(code, {**LIBRARIES, "t": t, "i": i})))
        return out

    agrees(loop, PENDING)
