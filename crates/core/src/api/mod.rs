//! The custom resources: types, defaults and validation rules. The doc comments are the descriptions of the CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

mod gate;
mod gate_types;
mod remediation;
mod remediation_policy;
mod selector;
mod status;
mod worker;

pub use gate::{GateTaint, NodeGate, NodeGateSpec, TaintEffect, VerifiedLabel};
pub use gate_types::{
    Awaited, Backoff, Continuous, DaemonSetRef, Deadlines, Enforcement, FailureAction, Mode, NodeCondition,
    OnReboot, Retry, WaitFor,
};
pub use remediation::{
    CauseSource, CauseVerdict, FailedCheck, NodeIdentity, NodeRemediation, NodeRemediationSpec,
    NodeRemediationStatus, RemediationAction, RemediationCause,
};
pub use remediation_policy::{
    ActEnforcement, Breaker, BreakerState, Budget, ControlGroup, Day, Drain, Evictable, Fuse, FuseState,
    History, Pause, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus, Reservation,
    SharedOutage, Window,
};
pub use selector::{NodeSelector, Operator, Requirement};
pub use status::{Condition, NodeCounts, NodeGateStatus};
pub use worker::{
    ConfigMapVolume, EmptyDir, EnvVar, HostPathVolume, InitContainer, PullPolicy, Quantity, Resources,
    SecurityContext, Toleration, Volume, VolumeMount, Worker,
};

/// The CustomResourceDefinitions of all resources.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [NodeGate::crd(), NodeRemediation::crd(), RemediationPolicy::crd()]
}
