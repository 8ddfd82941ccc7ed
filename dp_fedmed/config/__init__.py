"""The typed configuration: settings, what they may be, and how they are composed.

`compose` and `from_run_config` are the only ways to obtain one. Nothing heavy is imported here:
`dp-fedmed run --help` depends on it.
"""

from dp_fedmed.config.checks import METRICS as METRICS
from dp_fedmed.config.choices import AccountantName as AccountantName
from dp_fedmed.config.choices import Calibration as Calibration
from dp_fedmed.config.choices import Clipping as Clipping
from dp_fedmed.config.choices import EngineName as EngineName
from dp_fedmed.config.choices import GradMode as GradMode
from dp_fedmed.config.choices import Loss as Loss
from dp_fedmed.config.choices import MechanismName as MechanismName
from dp_fedmed.config.choices import NoisePlace as NoisePlace
from dp_fedmed.config.choices import OptimizerName as OptimizerName
from dp_fedmed.config.choices import PartitionName as PartitionName
from dp_fedmed.config.choices import PrivacyStyle as PrivacyStyle
from dp_fedmed.config.choices import SamplerName as SamplerName
from dp_fedmed.config.choices import ServerOptimizerName as ServerOptimizerName
from dp_fedmed.config.choices import TaskKind as TaskKind
from dp_fedmed.config.choices import Topology as Topology
from dp_fedmed.config.choices import Weighting as Weighting
from dp_fedmed.config.choices import better as better
from dp_fedmed.config.composition import call_hydra as call_hydra
from dp_fedmed.config.composition import compose as compose
from dp_fedmed.config.composition import explicit_groups_win as explicit_groups_win
from dp_fedmed.config.composition import from_dictconfig as from_dictconfig
from dp_fedmed.config.composition import from_run_config as from_run_config
from dp_fedmed.config.composition import from_yaml as from_yaml
from dp_fedmed.config.composition import given_by_user as given_by_user
from dp_fedmed.config.effects import refuse_without_effect as refuse_without_effect
from dp_fedmed.config.overrides import check_overrides as check_overrides
from dp_fedmed.config.overrides import conf_dir as conf_dir
from dp_fedmed.config.overrides import given_keys as given_keys
from dp_fedmed.config.overrides import own_folders as own_folders
from dp_fedmed.config.overrides import root_message as root_message
from dp_fedmed.config.schema import AnomalyConfig as AnomalyConfig
from dp_fedmed.config.schema import CheckpointConfig as CheckpointConfig
from dp_fedmed.config.schema import Config as Config
from dp_fedmed.config.schema import DataConfig as DataConfig
from dp_fedmed.config.schema import EngineConfig as EngineConfig
from dp_fedmed.config.schema import FederationConfig as FederationConfig
from dp_fedmed.config.schema import ModelConfig as ModelConfig
from dp_fedmed.config.schema import PartitionConfig as PartitionConfig
from dp_fedmed.config.schema import PrivacyConfig as PrivacyConfig
from dp_fedmed.config.schema import SamplePrivacyConfig as SamplePrivacyConfig
from dp_fedmed.config.schema import TaskConfig as TaskConfig
from dp_fedmed.config.schema import TrainingConfig as TrainingConfig
from dp_fedmed.config.schema import UserPrivacyConfig as UserPrivacyConfig
from dp_fedmed.config.tree import get as get
from dp_fedmed.config.tree import leaf_keys as leaf_keys
from dp_fedmed.config.tree import settings as settings
