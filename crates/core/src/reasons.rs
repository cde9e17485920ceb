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
/// `recheckSeconds`.
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
/// The node has a gate's taint and no gate serves it. Change a gate's selector or remove the taint.
pub const NODE_UNSERVED: &str = "NodeUnserved";
/// The node stays tainted because its gate is paused. Set `spec.enforcement: Enforce`.
pub const NODE_GATE_PAUSED: &str = "NodeGatePaused";
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
/// `Ready` is False: `spec.enforcement` is `DryRun`. Set it to `Enforce` once the Events say what you expect.
pub const DRY_RUN: &str = "DryRun";

/// Type: worker pods cannot run for a reason that is not the nodes' own.
pub const WORKERS_CANNOT_RUN: &str = "WorkersCannotRun";
/// `WorkersCannotRun` is True: the API server refuses worker pods. Fix the quota or admission policy in the message.
pub const CREATE_REFUSED: &str = "CreateRefused";
/// `WorkersCannotRun` is True: the workers of three or more nodes fail to run for the same reason. Fix the image, the
/// pull secrets or the resources.
pub const COMMON_FAILURE: &str = "CommonFailure";
/// `WorkersCannotRun` is False: nothing is known that keeps workers from running.
pub const WORKERS_RUN: &str = "WorkersRun";

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
/// `AutoscalerCompatible` is Unknown: Karpenter's `NodePools` cannot be read. Grant the permission in the message.
pub const CANNOT_READ: &str = "CannotRead";

// Remediation
