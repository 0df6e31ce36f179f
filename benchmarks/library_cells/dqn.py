# %% deep Q-learning: a small environment in Python, a replay memory, a target network
import math
import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
frames = 400


class Balance:
    """A pole to be kept upright by pushing its foot to the left, to the right, or not at all."""

    def reset(self):
        self.state = np.random.uniform(-0.05, 0.05, size=3).astype(np.float32)
        self.age = 0
        return self.state

    def step(self, action):
        angle, speed, place = self.state
        push = (action - 1) * 4.0
        speed = speed + 0.05 * (9.8 * math.sin(angle) - push * math.cos(angle))
        angle = angle + 0.05 * speed
        place = place + 0.05 * push / 4
        self.age += 1
        self.state = np.array([angle, speed, place], dtype=np.float32)
        done = abs(angle) > 0.4 or abs(place) > 2 or self.age >= 200
        return self.state, 1.0 - abs(angle), done


def network():
    return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)


policy, target = network(), network()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
memory = deque(maxlen=2000)
env = Balance()
state, returns, total, count = env.reset(), [], 0.0, 0


def act(state):
    epsilon = 0.05 + 0.85 * math.exp(-count / 200)
    if random.random() < epsilon:
        return random.randrange(3)
    with torch.no_grad():
        return policy(torch.from_numpy(state).to(device)).argmax().item()


def learn():
    states, actions, rewards, followed, ends = zip(*random.sample(memory, 32), strict=True)
    states = torch.as_tensor(np.stack(states), device=device)
    followed = torch.as_tensor(np.stack(followed), device=device)
    actions = torch.tensor(actions, device=device)
    rewards = torch.tensor(rewards, dtype=torch.float32, device=device)
    ends = torch.tensor(ends, dtype=torch.float32, device=device)
    value = policy(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        wanted = rewards + 0.99 * (1 - ends) * target(followed).max(1).values
    loss = F.smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    return loss.item()


# %%grape
losses = []
for _ in range(frames):
    action = act(state)
    following, reward, done = env.step(action)
    memory.append((state, action, reward, following, float(done)))
    state, total, count = following, total + reward, count + 1
    if len(memory) >= 64:
        losses.append(learn())
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), policy.parameters(), strict=True):
                ours.mul_(0.995).add_(theirs, alpha=0.005)
    if done:
        returns.append(total)
        state, total = env.reset(), 0.0

# %%
RESULT = {"policy": policy, "target": target, "optimizer": optimizer, "losses": losses, "returns": returns}
