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

#[test]
fn a_tier_is_skipped_or_failed_like_the_tier_it_needs() {
    let tier = &TIERS[TIERS.len() - 1];
    let mut rows = Vec::new();
    not_run(tier, "kubernetes", State::Unavailable, &mut rows);
    not_run(tier, "kubernetes", State::Failed, &mut rows);
    assert_eq!(rows[0].counts, Counts::SKIPPED);
    assert_eq!(rows[1].counts, Counts::FAILED);
}
