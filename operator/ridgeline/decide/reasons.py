"""Reasons of decisions and transitions: they become condition, event, log line and metric label unchanged."""

from __future__ import annotations

# ---- holding
OBJECTIVES_MET = "ObjectivesMet"
NOTHING_BETTER = "NothingBetter"
STABILIZING = "Stabilizing"
RECOMMEND_ONLY = "RecommendOnly"
TRANSITION_IN_PROGRESS = "TransitionInProgress"
COOLING_DOWN = "CoolingDown"
TUNED_LATELY = "TunedLately"
STARTING_BUDGET = "StartingBudget"
ENGINES_NOT_READY = "EnginesNotReady"
TOO_FEW_ENGINES = "TooFewEngines"
OVERLOADED = "Overloaded"
STATIC_REACHED = "StaticTopologyReached"
METRICS_STALE = "MetricsStale"
METRICS_INCOMPLETE = "MetricsIncomplete"
METRICS_NOT_A_NUMBER = "MetricsNotANumber"
METRICS_CONTRADICTORY = "MetricsContradictory"
STEP_TIMES_UNKNOWN = "StepTimesUnknown"

# ---- acting
REQUESTS_MISSED = "RequestsMissed"
PROMPTS_WAIT = "PromptsWait"
DECODE_STALLED = "DecodeStalled"
PREFILL_PRESSURE = "PrefillPressure"
DECODE_PRESSURE = "DecodePressure"
CALM = "Calm"
KV_TRANSFERS_FAIL = "KVTransfersFail"
SPLIT_COLLAPSED = "SplitCollapsed"
POOL_BELOW_MINIMUM = "PoolBelowMinimum"
PAIR_INCOMPLETE = "PairIncomplete"
ENGINE_REPLACED = "EngineReplaced"
STATIC_TOPOLOGY = "StaticTopology"

# ---- transitions under way
PRECHECKING = "Prechecking"
SWITCHING = "Switching"
SETTING_LIMITS = "SettingLimits"
AWAITING_ROUTERS = "AwaitingRouters"
AWAITING_TRAFFIC = "AwaitingTraffic"
AWAITING_KV = "AwaitingKV"
SOAKING = "Soaking"
ROLLING_BACK = "RollingBack"

# ---- transitions over
TRANSITION_DONE = "TransitionDone"
DONE_UNVERIFIED = "DoneWithoutTraffic"
SUPERSEDED = "Superseded"
LOAD_TURNED = "LoadTurned"
ENGINES_VANISHED = "EnginesVanished"
PRECHECK_FAILED = "PrecheckFailed"

# ---- rolling back
ROUTERS_NOT_IN_STEP = "RoutersNotInStep"
KV_NOT_MOVING = "KVNotMoving"
MISSES_ROSE = "MissesRose"
SWITCH_STUCK = "SwitchStuck"
TOO_FEW_ENGINES_LEFT = "TooFewEnginesLeft"
