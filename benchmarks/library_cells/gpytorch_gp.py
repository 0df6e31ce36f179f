# %% an exact Gaussian process: hyperparameters by Adam, then predictions
# needs: gpytorch
import math

import gpytorch
import torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
points, steps = (200, 60) if device == "cuda" else (60, 40)
train_x = torch.linspace(0, 1, points, device=device)
train_y = torch.sin(train_x * 2 * math.pi) + torch.randn(points).to(device) * 0.2
test_x = torch.linspace(0, 1, 51, device=device)


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
model = ExactGP(train_x, train_y, likelihood).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
log = []

# %%grape
model.train()
likelihood.train()
for _ in range(steps):
    optimizer.zero_grad()
    loss = -mll(model(train_x), train_y)
    loss.backward()
    log.append((loss.item(), model.covar_module.base_kernel.lengthscale.item(), model.likelihood.noise.item()))
    optimizer.step()

# %%grape
model.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    observed = likelihood(model(test_x))
    mean = observed.mean
    lower, upper = observed.confidence_region()

# %%
RESULT = {"model": model, "optimizer": optimizer, "log": log, "mean": mean, "lower": lower, "upper": upper}
