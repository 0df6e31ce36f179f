"""Training a quantized model: its rounding passes gradients straight through, in a `backward` written in Python."""
# %% setup
import torch
from torch import nn

class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx, grad):
        return grad

class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(Round.apply(torch.tanh(self.inner(x))))

model = Quantized()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(15, 16, 8)
targets = torch.randn(15, 16, 1)
# %% cell
for x, y in zip(data, targets):
    optimizer.zero_grad(set_to_none=True)
    prediction = model(x)  # GR405
    loss = (prediction - y).square().mean()
    loss.backward()
    optimizer.step()
