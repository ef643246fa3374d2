# ruff: noqa: E501
# fmt: off
"""The types of the keywords of `jaxppo.compose`. Made by `make docs` of their classes."""

from typing import Any, Literal, TypedDict

class Keywords(TypedDict, total=False):
    """Settings as keywords, each with what it means."""

    arch: Literal["default", "gpu"] | str
    """arch=NAME"""
    seed: int | None
    """seed of all random numbers; null: drawn when the run begins, and kept in its directory"""
    num_seeds: int
    """independent agents to train at once, with consecutive seeds from arch.seed"""
    total_num_envs: int
    """environments, summed over devices and update batches"""
    update_batch_size: int
    """update batches per device; they share parameters and average gradients"""
    actors: int
    """for environments that are not written in JAX: how many actors collect while the learner learns; 0: collect, then learn"""
    actors_on: Literal["threads", "ray"]
    """where actors run: threads (of this process), or ray (processes of a Ray cluster)"""
    actors_wait: Literal["all", "first"]
    """with actors: whether an update waits for a rollout of each (all), or takes the ones that are ready first; such a run does not repeat bit for bit"""
    actors_per_update: int | None
    """with actors_wait=first: rollouts of an update, whose environments are total_num_envs; null: as many as actors"""
    max_policy_lag: int
    """with actors: updates by which the policy that collects is older than the learner's; with actors_wait=first at most, and older rollouts are discarded"""
    act_on: Literal["device", "cpu"]
    """for environments that are not written in JAX: where actions of training are computed: on the devices that learn (device), or on the host's CPU (cpu), which starts small networks sooner than an accelerator"""
    learn: bool
    """false: collect and evaluate, but change no parameters, to debug an environment"""
    total_timesteps: int | float | None
    """environment steps to train for, rounded up to whole updates"""
    num_updates: int | None
    """updates to train for; if set, total_timesteps is ignored"""
    num_evaluation: int
    """number of evaluations, evenly spaced over the updates"""
    evaluate_first: bool
    """at step 0, evaluate the untrained policy, so that curves begin where learning does"""
    num_eval_episodes: int
    """episodes per evaluation"""
    max_eval_steps: int | None
    """longest evaluation episode, in steps; null: the environment's time limit"""
    eval_metric: str | None
    """a name of env.metrics, whose mean over the episodes of an evaluation chooses the best policy and is the absolute metric, the higher the better; null: the return"""
    evaluation_greedy: bool
    """true: evaluate the mode of the policy, without noise; false: sample actions"""
    absolute_metric: bool
    """at the end, evaluate the best parameters again, on 10 x num_eval_episodes episodes"""
    on_nonfinite: Literal["stop", "skip"]
    """on NaN or infinity in training: stop (at the end of the block), or skip (and count) such gradient steps"""
    precision: Literal["float32", "tf32", "bf16", "highest"] | None
    """of the networks' matrix products: float32 (as JAX does: TF32 on NVIDIA GPUs, bfloat16 on TPUs), tf32 (or better), highest (full float32), or bf16 (torsos in bfloat16; parameters, sums, losses and statistics stay float32); null: float32 on CPUs, tf32 on accelerators"""
    fused: bool | None
    """true: on GPUs, compute PPO's MLPs (of up to 128 units; tanh, relu or silu) with their heads in one kernel, and all steps of an lstm or gru (of up to 128 units) in one; not with precision=highest; false: layer by layer and step by step; null: where that was measured to be faster, so far nowhere"""
    compiler: Literal["thorough", "quick"]
    """on CPUs: thorough, or quick (for runs of seconds, with jaxlib up to 0.11.0: programs compile in about two thirds of the time with 0.3 GB less memory, and run at 0.8 to 0.9 of the speed)"""
    profile: str | None
    """folder for a profiler trace of two updates before the first block, whose phases are printed as a table; null: no trace"""
    distributed: dict[str, Any] | None
    """processes of a run on several hosts: coordinator (HOST:PORT of the first), num_processes and process_id; {}: detect the cluster (SLURM, Open MPI, torchrun, Kubernetes, Cloud TPU), otherwise one process; null: always one process"""
    compile_cache: str | None
    """folder of compiled programs, shared by all runs (XDG_CACHE_HOME replaces ~/.cache); a run deletes the least recently read beyond 1 GiB; null: no cache"""
    gamma: float
    """discount factor per step"""
    reward_scale: float
    """factor on training rewards; reported returns are not scaled"""
    reward_clip: float
    """clip training rewards to this magnitude, after scaling; .inf: no clipping"""
    max_grad_norm: float
    """clip the gradient of each optimiser group (PPO: actor and critic; PQN: one group; REPPO: actor, critic and multipliers) to this global norm; .inf: no clipping"""
    min_loss_change: float | None
    """end an update's epochs once the mean loss of one differs from that of the one before by less than this; null: never"""
    adam_b1: float | None
    """adam, adamw: decay rate of the mean of gradients; null: 0.9, a constant of the program"""
    adam_b2: float | None
    """adam, adamw: decay rate of the mean of squared gradients; null: 0.999, a constant"""
    adam_eps: float | None
    """adam, adamw: number added to the root of that mean; null: 1e-5 (adamw 1e-8), a constant"""
    decay_learning_rates: bool
    """decay learning rates linearly to zero over the run"""
    algorithm: Literal["ppo", "pqn", "reppo"] | str
    """ppo, pqn, reppo, or the import path of a class"""
    rollout_length: int
    """steps of each environment per update"""
    sequence_length: int | None
    """steps of a training sequence, for networks with memory; null (as in rec_ppo and rec_pqn): the whole rollout"""
    burn_in: int
    """first steps of each sequence that only update the memory and add no loss"""
    recompute_carries: bool
    """before every epoch, recompute the memory at the start of each sequence"""
    epochs: int
    """epochs per rollout"""
    num_minibatches: int
    """minibatches per epoch; each gives one gradient step"""
    microbatch_size: int | None
    """largest number of transitions to differentiate at once; null: chosen for this machine"""
    recompute_targets: bool
    """before every epoch, recompute the targets with the current parameters"""
    optimizer: Literal["adam", "adamw", "radam", "rmsprop", "lion", "muon"] | str
    """adam, adamw, radam, rmsprop, lion, muon (of optax; adam with eps=1e-5), or the import path of a function of learning_rate, such as optax.adabelief"""
    optimizer_kwargs: dict[str, Any]
    """further arguments of the optimiser, such as {b2: 0.99}"""
    clip_together: bool
    """clip the gradients of all optimiser groups together, by one global norm, instead of each group by its own"""
    schedules: dict[str, Any]
    """numbers of system that change over the run, such as {ent_coef: {kind: linear, end: 0.0}}; kind: constant, linear, cosine, exponential or warmup_linear; see docs/schedules.md"""
    normalize_rewards: bool
    """divide rewards by the running standard deviation of their discounted sums"""
    normalize_observations: bool
    """normalise float observations to running mean 0 and standard deviation 1"""
    normalize_entries: list[str]
    """entries of a dict observation that normalize_observations normalises, with dots if they are nested; []: all"""
    obs_clip: float
    """clip normalised observations to this magnitude; .inf: no clipping"""
    obs_min_std: float
    """least standard deviation that normalize_observations divides by, so that noise of a feature that hardly changes is not blown up"""
    obs_max_std: float
    """greatest standard deviation that normalize_observations divides by; .inf: no bound"""
    obs_norm_share: float
    """share of the run's updates, from the first, in which observation statistics are updated; then they are frozen"""
    obs_norm_warmup_steps: int
    """environment steps before training that only fill the observation statistics, rounded up to rollouts"""
    actor_lr: float
    """learning rate of the actor's and the shared parameters"""
    critic_lr: float
    """learning rate of the critic's parameters"""
    gae_lambda: float
    """lambda of GAE and V-trace: decay of the sum of TD errors"""
    rho_clip: float
    """vtrace and importance_weights: truncation level rho-bar of the importance ratios that weight TD errors and steps"""
    c_clip: float
    """vtrace: truncation level c-bar of the importance ratios that pass corrections on to earlier steps"""
    clip_eps: float
    """clip the probability ratio below 1 - clip_eps"""
    clip_eps_high: float | None
    """clip the probability ratio above 1 + clip_eps_high; null: clip_eps"""
    value_clip_eps: float | None
    """clip_value_loss: clip the change of the value to this; null: clip_eps"""
    log_ratio_clip: float | None
    """clip the logarithm of the probability ratio to this magnitude, beyond which an action has no gradient; null: no clipping"""
    kl_coef: float
    """penalty: weight of KL(old || new)"""
    kl_coef_target: float
    """KL per update, in nats, that adapt_kl_coef aims at"""
    dpo_alpha: float
    """dpo: scale of the drift for positive advantages"""
    dpo_beta: float
    """dpo: scale of the drift for negative advantages"""
    target_kl: float
    """stop an update's epochs if the KL of a minibatch exceeds this, in nats; .inf: never"""
    lr_kl_target: float
    """KL of a minibatch, in nats, that adapt_learning_rates aims at"""
    lr_factor: float
    """adapt_learning_rates: factor of one change"""
    lr_min: float
    """adapt_learning_rates: least actor_lr"""
    lr_max: float
    """adapt_learning_rates: greatest actor_lr"""
    ent_coef: float
    """weight of the entropy bonus"""
    vf_coef: float
    """weight of the value loss"""
    huber_delta: float
    """huber: error above which the loss is linear"""
    value_norm_decay: float
    """decay per update of the running averages of normalize_values"""
    advantages: Literal["gae", "vtrace"]
    """estimator of advantages and value targets: gae or vtrace"""
    standardize_advantages: Literal["batch", "minibatch", "none"]
    """standardise advantages (mean 0, standard deviation 1) over the batch, over each minibatch, or none"""
    objective: Literal["clip", "clip_dimensions", "penalty", "dpo", "reinforce"] | str
    """policy objective: clip, clip_dimensions (a ratio of each dimension of the action), penalty (KL), dpo (Lu et al. 2022), reinforce (with epochs=1 or importance_weights), or an import path"""
    importance_weights: bool
    """reinforce: weight each step by min(rho_clip, pi / mu), for a policy mu that acted and has changed since; with vtrace this is IMPALA's gradient"""
    adapt_kl_coef: bool
    """penalty: double kl_coef if an update's KL is above 1.5 x kl_coef_target, halve it if below kl_coef_target / 1.5"""
    adapt_learning_rates: bool
    """before each gradient step, divide the learning rates by lr_factor if its minibatch's KL is above 2 x lr_kl_target or target_kl, multiply them by it if below lr_kl_target / 2"""
    value_loss: Literal["squared", "huber"]
    """value loss: squared or huber"""
    clip_value_loss: bool
    """PPO2 value clipping: take the larger of two value losses, one of them with the change of the value clipped to value_clip_eps"""
    normalize_values: bool
    """normalise value targets to running mean 0 and standard deviation 1 for the critic"""
    learning_rate: float
    """learning rate of the Q-network"""
    q_lambda: float
    """lambda of Q(lambda): 0 bootstraps at every step, 1 only at truncations and at the end of the rollout"""
    epsilon_start: float
    """epsilon-greedy: probability of a random action at the start"""
    epsilon_end: float
    """epsilon-greedy: probability of a random action after the decay"""
    epsilon_fraction: float
    """epsilon-greedy: fraction of training over which epsilon decays linearly"""
    munchausen_alpha: float
    """munchausen: weight of the log-policy"""
    munchausen_temperature: float
    """munchausen: temperature of the policy, in units of scaled reward"""
    munchausen_clip: float
    """munchausen: clip temperature x log-policy to [-munchausen_clip, 0]"""
    munchausen: bool
    """Munchausen targets: add the scaled log-policy to rewards, and bootstrap from the soft value, with the policy softmax(Q / munchausen_temperature)"""
    multiplier_lr: float
    """learning rate of log alpha and log beta"""
    initial_alpha: float
    """weight of the entropy at the start, in units of scaled reward; learnt"""
    initial_beta: float
    """weight of KL(old || new) where it is above kl_bound, at the start; learnt"""
    target_entropy: float
    """entropy that alpha aims at for continuous actions: nats per dimension, of actions scaled to [-1, 1], whose entropy is at most 0.69"""
    target_entropy_share: float
    """entropy that alpha aims at for discrete actions, as a share of the greatest"""
    kl_bound: float
    """KL(old || new) of a state, in nats, above which the loss of the policy only reduces it"""
    auxiliary_coef: float
    """weight of predicting the next embedding and the reward, in the critic's loss"""
    env: Literal["acrobot", "asterix", "batch", "breakout", "cartpole", "cartpole_no_velocity", "catch", "deep_sea", "discounting_chain", "four_rooms", "freeway", "frozen_lake", "gate", "gymnasium", "gymnax", "memory_chain", "mountain_car", "mountain_car_continuous", "pendulum", "pendulum_no_velocity", "point_robot", "reacher", "seaquest", "space_invaders", "t_maze", "umbrella_chain", "brax/ant", "brax/halfcheetah", "brax/hopper", "brax/humanoid", "brax/walker2d", "craftax/classic", "craftax/symbolic", "jumanji/game_2048", "jumanji/maze", "jumanji/snake", "jumanji/tetris", "navix/door_key", "navix/empty", "pgx/connect_four", "pgx/tic_tac_toe", "playground/cartpole_balance", "xminigrid/empty"] | str
    """env=NAME"""
    env_library: Literal["gymnax", "brax", "craftax", "jumanji", "navix", "pgx", "playground", "xminigrid", "gymnasium", "envpool"]
    """written in JAX: gymnax, brax, craftax, jumanji, navix, pgx, playground, xminigrid; not in JAX: gymnasium, envpool"""
    env_name: str | None
    """a registered id of the library; ignored if target is set"""
    env_target: str | None
    """import path of your own class, with the interface of gymnax, jaxppo or Gymnasium"""
    env_module: str | None
    """module to import first, for example one that registers ids"""
    env_kwargs: dict[str, Any]
    """arguments of the environment's constructor"""
    env_params: dict[str, Any]
    """changes to the environment's default parameters"""
    env_randomize: dict[str, Any]
    """gymnax, and classes with params: parameters to draw uniformly, each with its bounds: {gravity: [8, 12]}"""
    env_randomize_per: Literal["episode", "environment"]
    """draw the parameters anew for each episode, or once for each environment"""
    env_randomize_evaluation: Literal["random", "fixed"]
    """in evaluations: random (each episode draws its parameters), or fixed (they have their defaults, or the values in env.params)"""
    env_curriculum: dict[str, Any]
    """gymnax, and classes with params: parameters that change linearly over a share of the updates, from a number or bounds to others: {gravity: {start: 5, end: 9.8, share: 0.5}}; evaluations are at the end"""
    env_gymnax_legacy: bool
    """target was written for gymnax 0.0.x: done of its step_env holds the time limit too, which we tell apart"""
    env_resets: Literal["each", "optimistic", "cached", "pool"]
    """start of later episodes: each (its own reset), optimistic (one reset for reset_ratio environments, shared if several end at once), cached (one of the first episodes' starts), pool (the next of pool_size starts that are made before each rollout)"""
    env_pool_size: int | None
    """pool: starts for the environments of one device and update batch, for a rollout; null: one for every 128 environment steps of a rollout"""
    env_reset_ratio: int
    """optimistic: environments per reset"""
    env_mask: list[int]
    """indices of a vector observation to hide: they read 0"""
    env_frame_stack: int
    """last observations of the episode that the policy sees, concatenated along the last axis"""
    env_extras: list[str]
    """entries to add to the observation: last_action, last_reward, step, agent"""
    env_metrics: list[str]
    """numbers that the environment tells besides the reward, each with how it adds up over an episode: last (default), sum, mean, max, or share (last, of a number that is 0 or 1; evaluations add its 95% interval), such as [success:share, x_position:mean]"""
    env_action_mask: str | None
    """key of a dict observation that holds the mask of legal actions; null: none"""
    env_opponent: str
    """games of two players: who has the other seat: random (uniform legal moves), self (the policy that learns has both seats), pool (self, and in opponent_share of the games an older policy of the run), baseline (Pgx's network for the game), the directory of another run (its best policy; DIR@STEPS: that of a checkpoint), or the import path of a function (observation, key) -> action"""
    env_num_opponents: int
    """opponent=pool: how many older policies; all are the untrained one at first, and after every num_updates // num_evaluation updates the current policy replaces the oldest"""
    env_opponent_share: float
    """opponent=pool: share of the games against an older policy"""
    env_evaluation_opponent: str | None
    """games: the opponent of evaluations: random, baseline, a run or a function; null: that of training, and random for self and pool"""
    env_random_moves: int
    """games: training games start after 0 to this many random legal moves, drawn for each game"""
    env_batch: bool
    """gymnasium: one object steps all worlds at once: gymnasium.make_vec of name, or what target(num_envs=N) makes"""
    env_wrappers: list[Any]
    """gymnasium: import paths of wrappers, from the inside to the outside; with arguments: {_target_: PATH, ...}"""
    env_processes: int
    """gymnasium: number of processes that share the environments: the run's own and new ones; 1: a new one; 0: only the run's own"""
    env_isolated: bool
    """gymnasium: all env.processes, at least 1, are new ones, and no environment steps in the run's own; env.on_error=restart, env.step_timeout and actors in threads set it too"""
    env_on_error: Literal["stop", "restart"]
    """gymnasium: if an environment fails, stop (with a checkpoint) or restart (make it anew, and count it)"""
    env_step_timeout: float | None
    """gymnasium: seconds after which the step of a process has failed, with env.processes"""
    network: Literal["board", "cnn", "gru", "gru_shared", "gtrxl", "gtrxl_shared", "impala", "lru", "lru_shared", "lstm", "lstm_shared", "mlp", "mlp_shared"] | str
    """network=NAME"""
    network_input_layer: dict[str, Any] | None
    """maps an observation to features"""
    network_shared_torso: dict[str, Any] | None
    """layers before both branches; null: none"""
    network_shared_memory: dict[str, Any] | None
    """memory of both branches, after shared_torso; null: none"""
    network_actor_torso: dict[str, Any] | None
    """layers before the actor's memory and head; null: none"""
    network_actor_memory: dict[str, Any] | None
    """the actor's memory; null: none"""
    network_actor_post_torso: dict[str, Any] | None
    """layers between the actor's memory and its head; null: none"""
    network_critic_input: dict[str, Any] | None
    """the critic's own input layer, for what only the critic may see: an entry of a dict observation; null: the critic continues after input_layer and the shared layers"""
    network_critic_torso: dict[str, Any] | None
    """layers before the critic's memory and head; null: none"""
    network_critic_memory: dict[str, Any] | None
    """the critic's memory; null: none"""
    network_critic_post_torso: dict[str, Any] | None
    """layers between the critic's memory and its head; null: none"""
    network_actor_head: dict[str, Any] | None
    """maps features to a distribution over actions; the default follows the action space"""
    network_critic_head: dict[str, Any] | None
    """maps features to a value"""
    network_q_head: dict[str, Any] | None
    """of a Q-network: maps features to a Q-value for each action; null: scalar"""
    network_initialization: dict[str, Any]
    """initial weights of layers, such as {actor_head: {kind: orthogonal, gain: 0.1}}; without a rule a layer keeps its own; see docs/networks.md"""
    population: Literal["halving", "none", "pbt"] | str
    """population=NAME"""
    population_size: int | None
    """number of members, with consecutive seeds from arch.seed; null: no population"""
    population_selection: Literal["none", "pbt", "halving"]
    """after evaluations: pbt (worse members copy better ones and explore), halving (worse members stop), or none"""
    population_hyperparameters: dict[str, Any]
    """settings of system that differ between members, each with its bounds [low, high]"""
    population_initialize: Literal["sample", "config"]
    """first values: sample (uniform between the bounds; log-uniform if they are positive; of fractions with bounds of at least 0.5, such as gamma, the distance to 1 is log-uniform), or config (the values of system)"""
    population_start: list[dict[str, Any]]
    """first values that are known to be good, of as many members: [{actor_lr: 1e-3}]; other values and members are as initialize says"""
    population_interval: int
    """pbt: number of evaluations between two selections"""
    population_threshold: float
    """pbt: share of members that are replaced, by copies of the same number of best members"""
    population_perturbation: float
    """pbt: a copied hyperparameter is multiplied or divided by this; of a fraction with bounds of at least 0.5, such as gamma, the distance to 1 is"""
    population_resample: float
    """pbt: probability that a copied hyperparameter is sampled anew instead"""
    population_reduction: int
    """halving: each selection divides the number of members by this, rounded up"""
    checkpoint: Literal["default"] | str
    """checkpoint=NAME"""
    checkpoint_enabled: bool
    """save checkpoints after evaluations and at the end"""
    checkpoint_share: float
    """largest share of the run's time for checkpoints; 1: a checkpoint after every evaluation"""
    checkpoint_every_seconds: float | None
    """save whenever so many seconds have passed since the last checkpoint, whatever share of the time it takes; null: as share says, and within a block at most once a minute"""
    checkpoint_keep: int
    """number of latest checkpoints to keep, besides the one with the best evaluation"""
    checkpoint_milestones: list[int]
    """environment steps; the first checkpoint at or after each is kept too"""
    logger: Literal["default"] | str
    """logger=NAME"""
    logger_console: bool
    """print progress on standard output"""
    logger_every: int | None
    """updates between two train events; there is one before each evaluation too, and counting starts anew after it; null: only those"""
    logger_details: bool
    """add to train events what each update computes only for this: extremes and histograms of advantages, values and targets, changes of policy and values; also waits and memory"""
    logger_alarm_loss: float | None
    """write an alarm event if the mean loss since the last check, about a second ago, is above this or NaN; null: never"""
    logger_json: bool
    """write metrics.jsonl (one object per event) and summary.json"""
    logger_plot: bool
    """draw learning_curve.png"""
    logger_marl_eval: bool
    """write marl_eval.json, the evaluations in the format of MARL-eval"""
    logger_tensorboard: bool
    """write event files in tensorboard/; needs tensorboardX"""
    logger_wandb: bool
    """log to Weights & Biases, with files in wandb/; needs wandb"""
    logger_wandb_mode: Literal["online", "offline"] | None
    """online, or offline (kept for `wandb sync`); null: WANDB_MODE, or online if it is not set"""
    logger_wandb_project: str
    """W&B project"""
    logger_wandb_entity: str | None
    """W&B user or team; null: your default"""
    logger_wandb_group: str | None
    """W&B group; null: the name of the sweep's directory, or of the run's if it has members"""
    logger_wandb_tags: list[str]
    """W&B tags"""
    logger_wandb_members: int
    """if a run has at most this many members, each has its own W&B run besides the summary"""
    logger_sinks: list[dict[str, Any]]
    """your own sinks, each with an import path (_target_) and arguments; see docs/sinks.md"""
    resume: str | None
    """directory of a run to resume, up to its budget, or further with a larger arch.total_timesteps or arch.num_updates; on a command line also true: that of hydra.run.dir or hydra.sweep.dir, if it has begun"""
    init_from: str | None
    """directory of a run whose policy a new run begins with: parameters and observation statistics; the optimiser and the budget are new"""
    init_which: str | int
    """the policy of init_from: best, latest, or the environment steps of a checkpoint"""
    init_parts: list[str]
    """parts of it to take, such as actor_torso and obs_statistics; []: all. The others begin anew"""
    resume_allow: list[str]
    """settings or groups of settings that may differ from those of the resumed run"""
    trust: list[str]
    """import paths, such as my_package, that the settings of the resumed run may name"""
