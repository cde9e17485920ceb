//! Who plays in the demo: 24 machines, four of them with a part of their own.

use std::collections::BTreeMap;

use nodekeeper_sim::actors::kubelet::NodeSpec;
use nodekeeper_sim::loopback::{Api, Dns, Endpoints};
use serde_json::json;

/// The taint that holds a machine, and the label of one that was let in: the defaults of a gate.
pub const TAINT: &str = "node-ready/unverified";
/// See [`TAINT`].
pub const LABEL: &str = "node-ready/verified";

/// What the gate of the demo allows before a node is looked at but rarely.
pub const ATTEMPTS: u32 = 4;

const REGION: &str = "eu-central-1";
const MACHINES: usize = 24;

/// What becomes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All is well with it.
    Healthy,
    /// Its DNS server does not answer, until it is healed.
    SilentDns,
    /// Where its API server should be, somebody else answers.
    Impostor,
    /// Nobody listens where its API server should be.
    NoApi,
    /// It is booted again while its worker looks.
    Rebooted,
}

impl Part {
    /// The parts that end with the taint still there.
    pub const HOPELESS: [Self; 2] = [Self::Impostor, Self::NoApi];
    /// The parts that fail at first.
    pub const BROKEN: [Self; 3] = [Self::SilentDns, Self::Impostor, Self::NoApi];

    /// What is wrong, for people.
    pub fn trouble(self) -> &'static str {
        match self {
            Self::Healthy => "nothing",
            Self::SilentDns => "its DNS server never answers",
            Self::Impostor => "somebody else answers for its API server",
            Self::NoApi => "its way to the API server is shut",
            Self::Rebooted => "it is booted again while its worker looks",
        }
    }

    /// The check that has to fail, and its reason.
    pub fn failing(self) -> Option<(&'static str, &'static str)> {
        use nodekeeper_core::report::reason;
        match self {
            Self::Healthy | Self::Rebooted => None,
            Self::SilentDns => Some(("dns", reason::TIMEOUT)),
            Self::Impostor => Some(("api", reason::TLS_ERROR)),
            Self::NoApi => Some(("api", reason::REFUSED)),
        }
    }

    /// Whether a record of a failure names what is really wrong.
    pub fn is_named_by(self, why: &str) -> bool {
        self.failing().is_some_and(|(check, reason)| {
            why.strip_prefix(check).is_some_and(|rest| rest.starts_with(' ') && rest.contains(reason))
        })
    }

    /// Breaks the network of a machine as its part asks for.
    pub fn break_network(self, network: &Endpoints) {
        match self {
            Self::Healthy => {}
            Self::SilentDns => network.set_dns(Dns::Drop),
            Self::Impostor => network.set_api(Api::WrongCertificate),
            Self::NoApi => network.set_api(Api::Refuse),
            // Where all is well a worker ends in milliseconds; this one has to last until the plug is pulled.
            Self::Rebooted => network.set_api(Api::Blackhole),
        }
    }
}

/// One machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, as a cloud would give it.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its part.
    pub part: Part,
}

impl Machine {
    /// What its kubelet registers with.
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

/// All machines, in the order in which they join. Those with a part come early: they need the most time.
pub fn cast() -> Vec<Machine> {
    let parts =
        BTreeMap::from([(2, Part::SilentDns), (4, Part::Impostor), (6, Part::NoApi), (8, Part::Rebooted)]);
    let machine = |i: usize| {
        let zone = i % 3;
        Machine {
            name: format!("ip-10-0-{}-{}", zone + 1, 10 + i * 73 % 211),
            zone: format!("{REGION}{}", ["a", "b", "c"][zone]),
            part: parts.get(&i).copied().unwrap_or(Part::Healthy),
        }
    };
    (0..MACHINES).map(machine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_24_machines_with_names_of_their_own() {
        let all = cast();
        let names: BTreeSet<&str> = all.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!((all.len(), names.len()), (24, 24));
        assert_eq!(all.iter().filter(|machine| machine.part == Part::Healthy).count(), 20);
    }

    #[test]
    fn a_failure_counts_only_if_it_names_what_is_wrong() {
        assert!(Part::SilentDns.is_named_by("dns kubernetes.default.: Timeout (no answer within 2 s)"));
        assert!(!Part::SilentDns.is_named_by("dns kubernetes.default.: NxDomain"));
        assert!(!Part::NoApi.is_named_by("tcp 127.0.0.1:1: Refused"));
        assert!(!Part::Healthy.is_named_by("dns kubernetes.default.: Timeout"));
    }
}
