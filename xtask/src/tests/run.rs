use super::*;

fn shell(script: &str) -> (Vec<String>, Option<i32>) {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let (child, lines) = start(command).unwrap();
    let mut seen = Vec::new();
    let code = read_output(child, &lines, |line| seen.push(line.to_owned()));
    (seen, code)
}

#[test]
fn stdout_and_stderr_keep_their_order() {
    let (lines, code) = shell("echo a; echo b >&2; echo c; echo d >&2; exit 3");
    assert_eq!(lines, ["a", "b", "c", "d"]);
    assert_eq!(code, Some(3));
}

#[test]
fn a_grandchild_with_an_open_pipe_does_not_block() {
    let (lines, code) = shell("sleep 300 & echo $!; exit 0");
    assert_eq!((lines.len(), code), (1, Some(0)));
    // The grandchild still runs: `read_output` did not wait for it.
    assert!(Command::new("kill").arg(&lines[0]).status().unwrap().success());
}

#[test]
fn test_targets_are_files_and_folders_with_a_main_file() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(test_names(own), ["lint"]);
    assert!(test_names(&own.join("src")).contains(&"rules".to_owned()));
    assert!(test_names(&own.join("nowhere")).is_empty());
}

const PASSES: &[Step] = &[Step::Cargo(&["--version"])];
const FAILS: &[Step] = &[Step::Cargo(&["no-such-command"])];

const fn tier(
    name: &'static str,
    lane: Lane,
    needs: &'static [&'static str],
    steps: &'static [Step],
) -> Tier {
    Tier { name, what: "", usually: "", needs, lane, steps }
}

fn results(tiers: &'static [Tier]) -> Vec<(&'static str, Counts)> {
    let logs = tempfile::tempdir().unwrap();
    run_lanes(tiers, logs.path(), logs.path()).iter().map(|row| (row.name, row.counts)).collect()
}

#[test]
fn a_tier_waits_for_other_lanes_and_fails_with_what_it_needs() {
    static TIERS: [Tier; 5] = [
        tier(BUILD, Lane::Tests, &[], PASSES),
        tier("prepared", Lane::Prepare, &[BUILD], PASSES),
        tier("broken", Lane::Prepare, &[], FAILS),
        tier("first", Lane::Tests, &["broken"], PASSES),
        tier("second", Lane::Tests, &["prepared"], PASSES),
    ];
    let (passed, failed) = (Counts::PASSED, Counts::FAILED);
    let rows =
        [(BUILD, passed), ("first", failed), ("second", passed), ("prepared", passed), ("broken", failed)];
    assert_eq!(results(&TIERS), rows);
}

#[test]
fn nothing_is_started_after_a_failed_build() {
    static TIERS: [Tier; 4] = [
        tier(BUILD, Lane::Tests, &[], FAILS),
        tier("prepared", Lane::Prepare, &[BUILD], PASSES),
        tier("test", Lane::Tests, &[], PASSES),
        tier("seeds", Lane::Seeds, &[BUILD], PASSES),
    ];
    assert_eq!(results(&TIERS), [(BUILD, Counts::FAILED)]);
}

#[test]
fn a_tier_is_skipped_if_the_machine_lacks_what_it_needs() {
    let tier = &TIERS[TIERS.len() - 1];
    assert_eq!(not_run(tier, "kubernetes", State::Unavailable).0, Counts::SKIPPED);
    assert_eq!(not_run(tier, "kubernetes", State::Failed).0, Counts::FAILED);
}
