//! The binary, as a person meets it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

fn nodekeeper(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodekeeper"))
        .args(arguments)
        .output()
        .expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_tells_its_story_and_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let demo = nodekeeper(&["demo", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let told = text(&demo.stdout);
    assert!(demo.status.success(), "{told}{}", text(&demo.stderr));
    for line in [
        "node-3 is Ready",
        "pod web does not tolerate the taint and waits",
        "its termination message: \"dns: no answer",
        "node-2 is declared unreachable and tainted",
        "under a new boot id",
        "All of it ended as it should",
    ] {
        assert!(told.contains(line), "no {line:?} in:\n{told}");
    }
    assert!(!told.contains('\x1b'), "colours without a terminal");
    assert_eq!(
        fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777,
        0o600,
        "there is a token in it"
    );
}

#[test]
fn help_and_version_are_there() {
    let help = text(&nodekeeper(&["demo", "--help"]).stdout);
    assert!(
        help.contains("--keep") && help.contains("--kubeconfig") && help.contains("Exit code 0"),
        "{help}"
    );
    assert!(text(&nodekeeper(&["--version"]).stdout).starts_with("nodekeeper 0."));
}

#[test]
fn a_mistake_is_named_with_its_fix() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let demo = nodekeeper(&["demo", "--listen", &address]);
    let said = text(&demo.stderr);
    assert!(!demo.status.success() && said.contains(&address) && said.contains("another port"), "{said}");
    let said = text(&nodekeeper(&["demo", "--listen", "here"]).stderr);
    assert!(said.contains("--listen <ADDRESS>") && said.contains("here"), "{said}");
    let said = text(&nodekeeper(&["dmeo"]).stderr);
    assert!(said.contains("demo"), "no suggestion in {said}");
    let said = text(&nodekeeper(&["demo", "--kubeconfig", "/nowhere/at/all"]).stderr);
    assert!(said.contains("--kubeconfig /nowhere/at/all: cannot write the file"), "{said}");
}
