use super::*;

fn shell(script: &str) -> (Vec<String>, Option<i32>) {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let (child, lines) = start(command).unwrap();
    let mut seen = Vec::new();
    let code = follow(child, &lines, |line| seen.push(line.to_owned()));
    (seen, code)
}

#[test]
fn output_and_errors_come_in_the_order_in_which_they_were_written() {
    let (lines, code) = shell("echo a; echo b >&2; echo c; echo d >&2; exit 3");
    assert_eq!(lines, ["a", "b", "c", "d"]);
    assert_eq!(code, Some(3));
}

#[test]
fn a_grandchild_that_keeps_the_pipe_does_not_keep_us() {
    let (lines, code) = shell("sleep 300 & echo $!; exit 0");
    assert_eq!((lines.len(), code), (1, Some(0)));
    // It is still there to be ended: we did not wait for it.
    assert!(Command::new("kill").arg(&lines[0]).status().unwrap().success());
}

#[test]
fn test_targets_are_files_and_folders_with_a_main() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(test_names(own), ["lint"]);
    assert!(test_names(&own.join("src")).contains(&"rules".to_owned()));
    assert!(test_names(&own.join("nowhere")).is_empty());
}

#[test]
fn a_tier_that_lacks_what_it_needs_is_skipped_and_one_whose_need_is_broken_has_failed() {
    let tier = &TIERS[TIERS.len() - 1];
    let mut rows = Vec::new();
    not_run(tier, "kubernetes", State::Unavailable, &mut rows);
    not_run(tier, "kubernetes", State::Failed, &mut rows);
    assert_eq!(rows[0].counts, Counts::SKIPPED);
    assert_eq!(rows[1].counts, Counts::FAILED);
}
