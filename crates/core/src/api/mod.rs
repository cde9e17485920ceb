//! The custom resources: types, defaults and what the API server checks; nothing else.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

mod brakes;
mod gate;
mod policy;
mod remediation;
mod selector;
mod status;
mod worker;

pub use brakes::{
    ActEnforcement, Breaker, BreakerState, Budget, ControlGroup, Day, Down, Drain, Evictable, Fuse,
    FuseState, History, Pause, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus,
    Reservation, Window,
};
pub use gate::{GateTaint, NodeGate, NodeGateSpec, TaintEffect, VerifiedLabel};
pub use policy::{
    Awaited, Backoff, Continuous, DaemonSetRef, Deadlines, Enforcement, Fate, Mode, NodeCondition, OnReboot,
    Retry, WaitFor,
};
pub use remediation::{
    CauseSource, CauseVerdict, FailedCheck, NodeIdentity, NodeRemediation, NodeRemediationSpec,
    NodeRemediationStatus, RemediationAction, RemediationCause,
};
pub use selector::{NodeSelector, Operator, Requirement};
pub use status::{Condition, NodeCounts, NodeGateStatus};
pub use worker::{
    ConfigMapVolume, EmptyDir, EnvVar, HostPathVolume, InitContainer, PullPolicy, Quantity, Resources,
    SecurityContext, Toleration, Volume, VolumeMount, Worker,
};

/// The definitions of all custom resources, as a cluster has to know them.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [NodeGate::crd(), NodeRemediation::crd(), RemediationPolicy::crd()]
}
