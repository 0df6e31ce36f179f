# %% Bayesian regression in Pyro: a guide fitted by SVI, predictions from it, then NUTS
# needs: pyro
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

pyro.set_rng_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
points, steps, chain = (500, 400, 30) if device == "cuda" else (80, 120, 12)
x = torch.randn(points, 3).to(device)
y = x @ torch.tensor([1.0, -2.0, 0.5], device=device) + 0.1 * torch.randn(points).to(device)
zero, ten = torch.tensor(0.0, device=device), torch.tensor(10.0, device=device)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(zero, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(zero, 10.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(zero, ten))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("seen", dist.Normal(mean, sigma), obs=y)
        return mean


model = Regression()
guide = AutoDiagonalNormal(model)
pyro.clear_param_store()
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), loss=Trace_ELBO())
losses = []

# %%grape
for step in range(steps):
    losses.append(svi.step(x, y))
    if step % 40 == 0:
        print(f"step {step}: {losses[-1]:.3f}")

# %%grape
samples = Predictive(model, guide=guide, num_samples=50, return_sites=("linear.weight", "seen", "_RETURN"))(x)

# %%grape
mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=chain, warmup_steps=chain, disable_progbar=True)
mcmc.run(x, y)
drawn = mcmc.get_samples()

# %%
fitted = dict(pyro.get_param_store().items())
RESULT = {"losses": losses, "guide": fitted, "samples": samples, "drawn": drawn}
