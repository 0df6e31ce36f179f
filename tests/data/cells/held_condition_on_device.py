"""A convergence flag on the device, looked at every tenth iteration."""
# near-miss: GR103
# %% setup
import torch

a = torch.randn(12, 12)
a = a @ a.T / 12 + torch.eye(12) * 2
b = torch.randn(12)

def jacobi(x):
    d = a.diagonal()
    return x + 0.5 * (b - a @ x) / d
# %% cell
x = torch.zeros(12)
for i in range(40):
    x = jacobi(x)
    if i % 10 == 9 and (b - a @ x).norm() < 1e-6:  # GR102
        break
