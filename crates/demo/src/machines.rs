//! The 24 machines of the demo; four of them have a scenario of their own.

use std::collections::BTreeMap;

use nodekeeper_sim::actors::kubelet::NodeSpec;
use nodekeeper_sim::loopback::{Api, Dns, Endpoints};
use nodekeeper_sim::value::json;

/// The default taint and label of a gate.
pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";

/// Attempts that the gate of the demo allows before it verifies a node only every `recheckPeriodSeconds`.
pub const ATTEMPTS: u32 = 4;

const REGION: &str = "eu-central-1";
const COUNT: usize = 24;

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Healthy,
    /// Its DNS server does not answer until it is repaired.
    SilentDns,
    /// The server at the address of its API server has a certificate of another authority.
    WrongCertificate,
    /// Connections to its API server are refused.
    ApiRefused,
    /// It reboots while its worker runs.
    Rebooted,
}

impl Scenario {
    /// The scenarios that end with the taint still there.
    pub const UNREPAIRED: [Self; 2] = [Self::WrongCertificate, Self::ApiRefused];
    /// The scenarios that fail at first.
    pub const BROKEN: [Self; 3] = [Self::SilentDns, Self::WrongCertificate, Self::ApiRefused];

    pub fn description(self) -> &'static str {
        match self {
            Self::Healthy => "it is healthy",
            Self::SilentDns => "its DNS server does not answer",
            Self::WrongCertificate => "its API server has an unknown certificate",
            Self::ApiRefused => "connections to its API server are refused",
            Self::Rebooted => "it reboots while its worker runs",
        }
    }

    /// Returns the check that has to fail, and the reason of the failure.
    pub fn failing(self) -> Option<(&'static str, &'static str)> {
        use nodekeeper_core::report::reason;
        match self {
            Self::Healthy | Self::Rebooted => None,
            Self::SilentDns => Some(("dns", reason::TIMEOUT)),
            Self::WrongCertificate => Some(("api", reason::TLS_ERROR)),
            Self::ApiRefused => Some(("api", reason::REFUSED)),
        }
    }

    /// Returns whether the message of a failure names the expected check and reason.
    pub fn matches_failure(self, why: &str) -> bool {
        self.failing().is_some_and(|(check, reason)| {
            why.strip_prefix(check).is_some_and(|rest| rest.starts_with(' ') && rest.contains(reason))
        })
    }

    /// Injects the fault of this scenario into the network of a machine.
    pub fn inject_fault(self, network: &Endpoints) {
        match self {
            Self::Healthy => {}
            Self::SilentDns => network.set_dns(Dns::Drop),
            Self::WrongCertificate => network.set_api(Api::WrongCertificate),
            Self::ApiRefused => network.set_api(Api::Refuse),
            // A worker on a healthy network ends in milliseconds; this one has to run until the reboot.
            Self::Rebooted => network.set_api(Api::Blackhole),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub name: String,
    pub zone: String,
    pub scenario: Scenario,
}

impl Machine {
    /// Returns what its kubelet registers the Node with.
    pub fn spec(&self) -> NodeSpec {
        let labels = [
            ("node.kubernetes.io/instance-type", "m7i.xlarge"),
            ("topology.kubernetes.io/region", REGION),
            ("eks.amazonaws.com/nodegroup", "workers"),
        ];
        let number =
            self.name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        NodeSpec {
            name: self.name.clone(),
            zone: self.zone.clone(),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            taints: vec![json!({"key": TAINT, "value": "true", "effect": "NoSchedule"})],
            provider_id: format!("aws:///{}/i-0{number:016x}", self.zone),
        }
    }
}

/// Returns all machines in the order in which they join. Those with a fault are early, because they need the most time.
pub fn machines() -> Vec<Machine> {
    let scenarios = BTreeMap::from([
        (2, Scenario::SilentDns),
        (4, Scenario::WrongCertificate),
        (6, Scenario::ApiRefused),
        (8, Scenario::Rebooted),
    ]);
    let machine = |i: usize| {
        let zone = i % 3;
        Machine {
            name: format!("ip-10-0-{}-{}", zone + 1, 10 + i * 73 % 211),
            zone: format!("{REGION}{}", ["a", "b", "c"][zone]),
            scenario: scenarios.get(&i).copied().unwrap_or(Scenario::Healthy),
        }
    };
    (0..COUNT).map(machine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_24_machines_with_unique_names() {
        let all = machines();
        let names: BTreeSet<&str> = all.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!((all.len(), names.len()), (24, 24));
        assert_eq!(all.iter().filter(|machine| machine.scenario == Scenario::Healthy).count(), 20);
    }

    #[test]
    fn a_failure_matches_only_its_check_and_reason() {
        assert!(
            Scenario::SilentDns.matches_failure("dns kubernetes.default.: Timeout (no answer within 2 s)")
        );
        assert!(!Scenario::SilentDns.matches_failure("dns kubernetes.default.: NxDomain"));
        assert!(!Scenario::ApiRefused.matches_failure("tcp 127.0.0.1:1: Refused"));
        assert!(!Scenario::Healthy.matches_failure("dns kubernetes.default.: Timeout"));
    }
}
