//! The custom resources: types, defaults and what the API server checks; nothing else.
//!
//! Doc comments here are shipped as the descriptions of the CRDs, so each item has one.

#![warn(missing_docs)]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

mod gate;
mod gate_types;
mod remediation;
mod remediation_policy;
mod selector;
mod status;
mod volume;
mod worker;

pub use crate::env_var::{EnvVar, EnvVarSource, FieldSelector, KeySelector};
pub use gate::{GateTaint, NodeGate, NodeGateSpec, TaintEffect, VerifiedLabel};
pub use gate_types::{
    Awaited, AwaitedCondition, Backoff, ConditionStatus, Continuous, DaemonSetRef, Deadlines, Enforcement,
    FailureAction, Mode, NodeCondition, OnReboot, Retry, WaitFor,
};
pub use remediation::{
    CauseSource, CauseVerdict, FailedCheck, NodeIdentity, NodeRemediation, NodeRemediationSpec,
    NodeRemediationStatus, RemediationAction, RemediationBackoff, RemediationCause,
};
pub use remediation_policy::{
    ActEnforcement, Breaker, BreakerState, Budget, CauseSelector, ControlGroup, Day, Drain, Evictable, Fuse,
    FuseState, History, Pause, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus,
    Reservation, SharedOutage, Window,
};
pub use selector::{NodeSelector, Operator, Requirement};
pub use status::{AuditCounts, Condition, GatedNode, NodeCounts, NodeGateStatus};
pub use volume::{
    ConfigMapVolume, DownwardApiProjection, EmptyDir, FieldToPath, HostPathVolume, KeyToPath,
    ProjectedVolume, SecretProjection, SecretVolume, Volume, VolumeMount, VolumeProjection,
};
pub use worker::{
    ImagePullPolicy, InitContainer, LocalObjectReference, Quantity, Resources, SecurityContext, Toleration,
    TolerationOperator, Worker,
};

/// The CustomResourceDefinitions of all resources.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [NodeGate::crd(), NodeRemediation::crd(), RemediationPolicy::crd()]
}
