//! Event reasons, condition types and condition reasons. Users and other controllers match these strings: a change is an
//! API change.

// Events on Nodes

/// The node passed: the gate removed its taint, or a verified node passed again. No action is needed.
pub const NODE_VERIFIED: &str = "NodeVerified";
/// A worker starts on a verified node; the note says why. No action is needed.
pub const NODE_VERIFICATION_STARTED: &str = "NodeVerificationStarted";
/// A worker found a failed check. Fix what the note names; the gate retries by itself.
pub const NODE_CHECK_FAILED: &str = "NodeCheckFailed";
/// All attempts failed and the node stays tainted. Fix or replace the node; the gate verifies it again every
/// `recheckPeriodSeconds`.
pub const NODE_VERIFICATION_FAILED: &str = "NodeVerificationFailed";
/// A worker ended without a verdict about the node. Fix what kept the worker from running if it happens again.
pub const NODE_VERIFICATION_INCONCLUSIVE: &str = "NodeVerificationInconclusive";
/// No worker came to a verdict within `gateSeconds` and the node stays tainted. Fix what the note names.
pub const NODE_VERIFICATION_STUCK: &str = "NodeVerificationStuck";
/// No worker starts before a `DaemonSet` of `spec.waitFor` is ready on the node. Look at that `DaemonSet`'s pod.
pub const NODE_WAITING: &str = "NodeWaiting";
/// A verified node failed or was rebooted and has its taint again. Look at the failed checks.
pub const NODE_GATED: &str = "NodeGated";
/// A verified node failed and keeps running without a taint, because a tenth of the gate's nodes is tainted again
/// already. Look for a cause that the nodes share.
pub const NODE_RETAINT_SKIPPED: &str = "NodeRetaintSkipped";
/// Somebody keeps putting the gate's taint back, or removing its label. The note has the field manager that wrote the
/// taints last. Stop that controller, or use another taint or label.
pub const NODE_REVERTED: &str = "NodeReverted";
/// The API server does not accept what the gate has to write about the node. The note has the server's message. Change
/// the role, admission policy or webhook that it names.
pub const NODE_WRITE_REFUSED: &str = "NodeWriteRefused";
/// The node has a gate's taint and no gate serves it. Change a gate's selector or remove the taint.
pub const NODE_UNSERVED: &str = "NodeUnserved";
/// The node stays tainted because its gate is paused. Set `spec.enforcement: Enforce`.
pub const NODE_GATE_PAUSED: &str = "NodeGatePaused";
/// A gate in audit admitted a node that it would have held. Look at what the note names before you enforce the gate.
pub const NODE_AUDITED: &str = "NodeAudited";
/// A gate in dry run says what it would do with the node. No action is needed.
pub const NODE_GATE_DRY_RUN: &str = "NodeGateDryRun";

// Condition on Nodes

/// Type of the condition that a gate with `spec.nodeCondition: NetworkVerified` writes on its nodes.
pub const NETWORK_VERIFIED: &str = "NetworkVerified";
/// `NetworkVerified` is True: the last worker passed.
pub const VERIFIED: &str = "Verified";
/// `NetworkVerified` is False: the last worker found a failed check. Look at the node's Events.
pub const CHECKS_FAILED: &str = "ChecksFailed";
/// `NetworkVerified` is Unknown: no worker came to a verdict. Look at the node's Events.
pub const NOT_VERIFIED: &str = "NotVerified";

// Conditions of a NodeGate

/// Type: the gate verifies its nodes and removes their taint.
pub const READY: &str = "Ready";
/// `Ready` is True: the gate verifies its nodes.
pub const SERVING: &str = "Serving";
/// `Ready` is False: the gate is being deleted. Free its nodes or create another gate for them.
pub const DELETING: &str = "Deleting";
/// `Ready` is False: `spec.enforcement` is `Paused`. Set it to `Enforce` to continue.
pub const PAUSED: &str = "Paused";
/// `Ready` is True: `spec.enforcement` is `Audit`. Look at `status.audit`, and set `Enforce` once it is as you expect.
pub const AUDITING: &str = "Auditing";
/// `Ready` is False: `spec.enforcement` is `DryRun`. Set it to `Enforce` once the Events say what you expect.
pub const DRY_RUN: &str = "DryRun";

/// Type: worker pods cannot run for a reason that is not the nodes' own.
pub const WORKERS_CANNOT_RUN: &str = "WorkersCannotRun";
/// `WorkersCannotRun` is True: the API server refuses worker pods. Fix the quota or admission policy in the message.
pub const CREATE_REFUSED: &str = "CreateRefused";
/// `WorkersCannotRun` is True: the controller may not watch pods, which `spec.waitFor.daemonSets` needs. Grant the right
/// in the message.
pub const MISSING_RIGHTS: &str = "MissingRights";
/// `WorkersCannotRun` is True: the workers of three or more nodes fail to run for the same reason. Fix the image, the
/// pull secrets or the resources.
pub const COMMON_FAILURE: &str = "CommonFailure";
/// `WorkersCannotRun` is False: nothing is known that keeps workers from running.
pub const WORKERS_RUN: &str = "WorkersRun";

/// Type: the API server does not accept what the gate has to write about its nodes.
pub const WRITES_REFUSED: &str = "WritesRefused";
/// `WritesRefused` is True: writes are refused, or have failed for a minute. Change what the message names.
pub const WRITE_REFUSED: &str = "WriteRefused";

/// Type: workers found the cluster's DNS without ready endpoints.
pub const CLUSTER_DNS_NOT_RUNNING: &str = "ClusterDNSNotRunning";
/// `ClusterDNSNotRunning` is True: the DNS Service has no ready endpoint. Let `CoreDNS` tolerate the gate's taint.
pub const NO_READY_ENDPOINTS: &str = "NoReadyEndpoints";
/// A condition is False because nothing of the kind was observed. No action is needed.
pub const NOT_OBSERVED: &str = "NotObserved";

/// Type: another gate serves nodes that this gate selects.
pub const SHADOWED: &str = "Shadowed";
/// `Shadowed` is True: the other gate has precedence. Change `spec.priority`, `spec.taints` or `spec.nodeSelector`.
pub const LOWER_PRECEDENCE: &str = "LowerPrecedence";
/// `Shadowed` is False: no other gate has precedence for this gate's nodes.
pub const NO_OVERLAP: &str = "NoOverlap";

/// Type: nodes have a taint of this gate and no gate serves them.
pub const NODES_UNSERVED: &str = "NodesUnserved";
/// `NodesUnserved` is True: no gate selects the nodes. Change `spec.nodeSelector` or remove the taint.
pub const NOT_SELECTED: &str = "NotSelected";
/// `NodesUnserved` is False: a gate serves every node with the taint.
pub const ALL_SERVED: &str = "AllServed";

/// Type: autoscalers treat the gate's taint as one that is removed after startup.
pub const AUTOSCALER_COMPATIBLE: &str = "AutoscalerCompatible";
/// `AutoscalerCompatible` is True: there is no autoscaler.
pub const NO_AUTOSCALER: &str = "NoAutoscaler";
/// `AutoscalerCompatible` is True: every autoscaler knows the taint as a startup taint, or does not create it.
pub const COMPATIBLE: &str = "Compatible";
/// `AutoscalerCompatible` is False: a `NodePool` has the taint under `taints`. Move it to `startupTaints`.
pub const TAINT_IS_PERMANENT: &str = "TaintIsPermanent";
/// `AutoscalerCompatible` is Unknown: Cluster Autoscaler's flags cannot be read. Start it with `--startup-taint`.
pub const STARTUP_TAINT_NOT_CONFIRMED: &str = "StartupTaintNotConfirmed";
/// `AutoscalerCompatible` is Unknown, and the reason of `Ready`: no `NodePool` and no node has the gate's taint. Add it to
/// the `startupTaints` of the pools whose nodes the gate is for.
pub const NOTHING_TO_GATE: &str = "NothingToGate";
/// `AutoscalerCompatible` is Unknown: Karpenter's `NodePools` cannot be read. Grant the permission in the message.
pub const CANNOT_READ: &str = "CannotRead";

// The condition of objects that the installation brings: a NodeGate or a RemediationPolicy

/// Type: the object is as the configuration of the installation says. Objects that it never had do not have the condition.
pub const CONFIGURATION_APPLIED: &str = "ConfigurationApplied";
/// `ConfigurationApplied` is True: the object is as configured. No action is needed.
pub const APPLIED: &str = "Applied";
/// `ConfigurationApplied` is False: the leader has not applied the configuration yet. Wait.
pub const APPLY_PENDING: &str = "ApplyPending";
/// `ConfigurationApplied` is False: fields that the message names differ from the configuration, because somebody else set
/// them. They are kept. Set the same in the values and in the object.
pub const EDITED_BY_HAND: &str = "EditedByHand";
/// `ConfigurationApplied` is False: the configuration no longer has the object, which is kept. Delete it, or remove its
/// annotation `nodekeeper.dev/last-applied`.
pub const NO_LONGER_CONFIGURED: &str = "NoLongerConfigured";
/// `ConfigurationApplied` is False: the API server does not accept the configuration. Change what the message names.
pub const APPLY_REFUSED: &str = "ApplyRefused";

// Remediation

/// Condition types and reasons of `NodeRemediation` and `RemediationPolicy`.
pub mod remediation {
    // Events on Nodes.

    /// The replacement of the node was approved and begins. No action is needed.
    pub const REMEDIATION_APPROVED: &str = "RemediationApproved";
    /// The replacement of the node is blocked. The note says by what and how to proceed.
    pub const REMEDIATION_BLOCKED: &str = "RemediationBlocked";
    /// A replacement that had begun was given up and its cordon removed. The note says why.
    pub const REMEDIATION_GIVEN_UP: &str = "RemediationGivenUp";
    /// The provider was asked to replace the machine. No action is needed.
    pub const NODE_REPLACEMENT_REQUESTED: &str = "NodeReplacementRequested";

    // Condition types of NodeRemediation.

    /// Whether the remediation may proceed. While False, the reason names what blocks it.
    pub const APPROVED: &str = "Approved";
    /// Whether all pods that have to leave the node are gone.
    pub const DRAINED: &str = "Drained";
    /// Whether the replacement of the machine was requested from the provider.
    pub const REPLACED: &str = "Replaced";
    /// Whether the node is gone. Unknown until the remediation has ended.
    pub const SUCCEEDED: &str = "Succeeded";

    // Condition types of RemediationPolicy. BreakerOpen, FuseBlown, Paused and SharedDependencyDown are also reasons.

    /// Whether remediations are approved and carried out at all.
    pub const READY: &str = "Ready";

    // What blocks a remediation: reasons of Approved False. docs/remediation.md lists them in the order of the checks.

    /// The Node was deleted, or its name belongs to another machine. The remediation has ended.
    pub const NODE_GONE: &str = "NodeGone";
    /// The node has rebooted since the observation. The remediation has ended; a gate verifies the node again.
    pub const NODE_REBOOTED: &str = "NodeRebooted";
    /// A user or another controller is deleting the node. Wait for it.
    pub const NODE_TERMINATING: &str = "NodeTerminating";
    /// The node has passed its gate since. The remediation has ended.
    pub const NODE_RECOVERED: &str = "NodeRecovered";
    /// The observation is too old or outdated, or the gate no longer requests the replacement.
    /// The requester has to observe the node again.
    pub const EVIDENCE_EXPIRED: &str = "EvidenceExpired";
    /// Remediation is paused by the policy. Wait for the end of the pause, or remove it.
    pub const PAUSED: &str = "Paused";
    /// The controller has no permission for what acts need; also a reason of Ready False. Grant what the message names.
    pub const MISSING_RIGHTS: &str = "MissingRights";
    /// The node or one of its pods has a do-not-disrupt annotation. Remove it to allow the replacement.
    pub const OPTED_OUT: &str = "OptedOut";
    /// The node belongs to the control plane. List it in `spec.allowedControlPlaneNodes` of the policy to allow it.
    pub const CONTROL_PLANE: &str = "ControlPlane";
    /// Karpenter has not registered the node yet. Wait for it.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// No provider replaces the machine. See `spec.deleteNodeObjectFor` of the policy.
    pub const NO_PROVIDER: &str = "NoProvider";
    /// The provider's objects cannot be read or found. Check the controller's permissions.
    pub const PROVIDER_UNREADABLE: &str = "ProviderUnreadable";
    /// A pod of the node must not be evicted. Delete the pod, or change `spec.drain` of the policy.
    pub const POD_NOT_EVICTABLE: &str = "PodNotEvictable";
    /// Earlier attempts failed because the node could not be drained or replaced. Fix what the message names, and wait for
    /// its time or delete the `NodeRemediation`.
    pub const BACK_OFF: &str = "BackOff";
    /// The current time is outside of all maintenance windows. Wait, or change `spec.windows` of the policy.
    pub const OUTSIDE_WINDOW: &str = "OutsideWindow";
    /// A shared outage has just ended. Wait for `spec.controlGroup.recoverySeconds` of the policy.
    pub const RECOVERING: &str = "Recovering";
    /// Verified nodes fail the same check, or too few of them can be compared with. Fix the shared dependency.
    pub const SHARED_DEPENDENCY_DOWN: &str = "SharedDependencyDown";
    /// Too large a share of the nodes fails. Find out what they have in common.
    pub const BREAKER_OPEN: &str = "BreakerOpen";
    /// Replacements of replaced nodes fail the same check. Fix what the group's nodes are created from.
    pub const FUSE_BLOWN: &str = "FuseBlown";
    /// The budget of the policy is used up. Wait, or find out why so many nodes fail.
    pub const BUDGET_SPENT: &str = "BudgetSpent";
    /// The group may have no other schedulable node. Add one, or wait for the replacements in flight.
    pub const LAST_OPEN_NODE: &str = "LastOpenNode";
    /// The checks run on the control group. Wait for the result.
    pub const COMPARING: &str = "Comparing";
    /// The policy does not enforce, or there is none. The message says what would happen.
    pub const DRY_RUN: &str = "DryRun";

    // Progress of an approved remediation.

    /// Approved True: the budget had room for the remediation.
    pub const WITHIN_BUDGET: &str = "WithinBudget";
    /// Succeeded Unknown: the remediation is being carried out.
    pub const IN_PROGRESS: &str = "InProgress";
    /// Drained False: the node is being cordoned.
    pub const CORDONING: &str = "Cordoning";
    /// Drained False: pods are being evicted. The message names a `PodDisruptionBudget` that is in the way.
    pub const DRAINING: &str = "Draining";
    /// Succeeded Unknown: the API server refuses a request of the controller, which is tried again after a growing time.
    /// The message has its answer. Grant the permission, or change the admission policy or webhook.
    pub const REQUEST_REFUSED: &str = "RequestRefused";
    /// Replaced Unknown or True: the replacement was requested from the provider.
    pub const REQUESTED: &str = "Requested";

    // Why an approved remediation failed.

    /// A pod still exists after its grace period and `spec.drain.podOvertimeSeconds`. Check its finalizers and its kubelet.
    pub const POD_STUCK: &str = "PodStuck";
    /// Pods are left after `spec.drain.timeoutSeconds`. Check the `PodDisruptionBudgets`.
    pub const DRAIN_TIMED_OUT: &str = "DrainTimedOut";
    /// The remediation took longer than an hour.
    pub const TIMED_OUT: &str = "TimedOut";
    /// Succeeded Unknown, and an Event: the node is being deleted and still exists after an hour. Check its finalizers.
    pub const DELETION_TIMED_OUT: &str = "DeletionTimedOut";

    // Reasons of the conditions of RemediationPolicy.

    /// Ready True: remediations are approved and carried out.
    pub const ENFORCING: &str = "Enforcing";
    /// Ready False: a maintenance window cannot be read. The message names the field.
    pub const INVALID_WINDOW: &str = "InvalidWindow";
    /// Ready False, or Paused True: an annotation of the policy cannot be read. The message names it.
    pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
    /// Ready False: the API server refuses what the controller writes besides the acts themselves, or has not accepted it for
    /// a minute. Change what the message names.
    pub const WRITE_REFUSED: &str = "WriteRefused";
    /// Paused True: `spec.pause` is in effect.
    pub const PAUSED_BY_SPEC: &str = "PausedBySpec";
    /// Paused True: the annotation `nodekeeper.dev/pause-until` is in effect.
    pub const PAUSED_BY_ANNOTATION: &str = "PausedByAnnotation";
    /// Paused False: no pause is set, or its end has passed.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// `BreakerOpen` True: too large a share of the recent verdicts are failures.
    pub const TOO_MANY_FAIL: &str = "TooManyFail";
    /// `BreakerOpen` False: the share of failures is below the threshold.
    pub const BELOW_THRESHOLD: &str = "BelowThreshold";
    /// `SharedDependencyDown` True: a check fails on the control group. Fix what it tests.
    pub const CONTROLS_FAIL: &str = "ControlsFail";
    /// `SharedDependencyDown` True: nodes wait because their zone has too few verified nodes to compare with.
    pub const NOTHING_TO_COMPARE_WITH: &str = "NothingToCompareWith";
    /// `SharedDependencyDown` False: no check is known to fail on verified nodes.
    pub const NOT_OBSERVED: &str = "NotObserved";
    /// `FuseBlown` True: replacements fail the same check as the nodes that they replaced.
    pub const REPLACEMENTS_FAIL_ALIKE: &str = "ReplacementsFailAlike";
    /// `FuseBlown` False: no group has failing replacements of replacements.
    pub const NO_REPEATED_FAILURE: &str = "NoRepeatedFailure";
}
