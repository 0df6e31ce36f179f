# %% Stable-Baselines3: PPO and DQN learn to balance a pole, and are evaluated
# needs: stable_baselines3, gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy

device = "cuda" if torch.cuda.is_available() else "cpu"
steps = 2048 if device == "cuda" else 384
given = {"policy": "MlpPolicy", "env": "CartPole-v1", "seed": 0, "device": device}
ppo = PPO(**given, n_steps=64, batch_size=32, n_epochs=3, policy_kwargs={"net_arch": [32]})
dqn = DQN(**given, learning_starts=50, batch_size=16, train_freq=4, target_update_interval=100)
rewards = []

# %%grape
trained = ppo.learn(total_timesteps=steps).num_timesteps

# %%grape
trained += dqn.learn(total_timesteps=steps).num_timesteps

# %%grape
rewards += [evaluate_policy(one, one.get_env(), n_eval_episodes=2, deterministic=True) for one in (ppo, dqn)]

# %%
RESULT = {"ppo": ppo.policy, "dqn": dqn.q_net, "rewards": rewards, "steps": trained}
