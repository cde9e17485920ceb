//! Condition types and reasons, each with what it means and what to do about it.

// Remediation

/// Condition types and reasons of `NodeRemediation` and `RemediationPolicy`.
pub mod remediation {
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

    // What blocks a remediation: reasons of Approved False, in the order in which they are checked.

    /// The Node was deleted, or its name belongs to another machine. The remediation has ended.
    pub const NODE_GONE: &str = "NodeGone";
    /// The node has rebooted since the observation. The remediation has ended; a gate verifies the node again.
    pub const NODE_REBOOTED: &str = "NodeRebooted";
    /// A user or another controller is deleting the node. Wait for it.
    pub const NODE_TERMINATING: &str = "NodeTerminating";
    /// The node has passed its gate since. The remediation has ended.
    pub const NODE_RECOVERED: &str = "NodeRecovered";
    /// The observation is too old or outdated. The requester has to observe the node again.
    pub const EVIDENCE_EXPIRED: &str = "EvidenceExpired";
    /// Remediation is paused by the policy. Wait for the end of the pause, or remove it.
    pub const PAUSED: &str = "Paused";
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
    /// Replaced Unknown or True: the replacement was requested from the provider.
    pub const REQUESTED: &str = "Requested";

    // Why an approved remediation failed.

    /// A pod still exists after its grace period and `spec.drain.podOvertimeSeconds`. Check its finalizers and its kubelet.
    pub const POD_STUCK: &str = "PodStuck";
    /// Pods are left after `spec.drain.timeoutSeconds`. Check the `PodDisruptionBudgets`.
    pub const DRAIN_TIMED_OUT: &str = "DrainTimedOut";
    /// The remediation took longer than an hour.
    pub const TIMED_OUT: &str = "TimedOut";
    /// The node is being deleted and still exists after an hour. Check its finalizers.
    pub const DELETION_TIMED_OUT: &str = "DeletionTimedOut";

    // Reasons of the conditions of RemediationPolicy.

    /// Ready True: remediations are approved and carried out.
    pub const ENFORCING: &str = "Enforcing";
    /// Ready False: a maintenance window cannot be read. The message names the field.
    pub const INVALID_WINDOW: &str = "InvalidWindow";
    /// Ready False, or Paused True: an annotation of the policy cannot be read. The message names it.
    pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
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
