use super::*;

fn read(text: &str, success: bool) -> Counts {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(line);
    }
    reader.finish(success)
}

fn counts(passed: usize, failed: usize, skipped: usize) -> Counts {
    Counts { passed, failed, skipped }
}

#[test]
fn results_of_several_suites_add_up() {
    let text = "
running 3 tests
test a ... ok
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
running 4 tests
test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s
";
    assert_eq!(read(text, false), counts(4, 2, 1));
}

#[test]
fn only_exact_plain_results_count() {
    assert_eq!(read("a table\n104 passed, 0 failed", true), counts(104, 0, 0));
    assert_eq!(read("104 passed, 2 failed, 1 skipped", false), counts(104, 2, 1));
    assert_eq!(read("so far 104 passed, 0 failed\n3 passed, 0 failed, and more", true), Counts::PASSED);
}

#[test]
fn a_program_without_counts_is_one_test() {
    assert_eq!(read("built", true), Counts::PASSED);
    assert_eq!(read("error: no such file", false), Counts::FAILED);
}

#[test]
fn a_nonzero_exit_code_is_a_failure() {
    let text =
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
    assert_eq!(read(text, false), counts(3, 1, 0));
    assert_eq!(read("3 passed, 0 failed", false), counts(3, 1, 0));
}

#[test]
fn zero_tests_are_not_a_pass() {
    let text = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s";
    assert_eq!(read(text, true), counts(0, 0, 0));
}

#[test]
fn a_test_that_prints_skipped_is_not_counted_as_passed() {
    let text = "
running 3 tests
test a ... ok
test b ... ok
test c ... ok

successes:

---- b stdout ----
SKIPPED: no Go here
SKIPPED: and nothing else either

---- c stdout ----
said something


successes:
    a
    b
    c

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    assert_eq!(read(text, true), counts(2, 0, 1));
}

#[test]
fn names_of_passed_tests_are_not_shown_twice() {
    let text = "running 1 test\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\n    said\n\n\nsuccesses:\n    a\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
    let mut reader = Reader::default();
    let shown: Vec<&str> = text.lines().filter(|line| reader.line(line) && !line.is_empty()).collect();
    let result = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
    assert_eq!(shown, ["running 1 test", "test a ... ok", "---- a stdout ----", "    said", result]);
}

#[test]
fn an_uncaptured_skip_line_counts_too() {
    let text = "
running 2 tests
=== SKIPPED, no control plane: no Go ===
SKIPPED: no Go
test a ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    assert_eq!(read(text, true), counts(0, 0, 2));
}

#[test]
fn a_failed_test_that_prints_skipped_stays_failed() {
    let text = "
running 2 tests
test a ... FAILED

failures:

---- a stdout ----
SKIPPED: half of it

failures:
    a

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    assert_eq!(read(text, false), counts(1, 1, 0));
}

#[test]
fn a_suite_without_libtest_can_be_skipped() {
    assert_eq!(read("SKIPPED: no Go here", true), Counts::SKIPPED);
}

#[test]
fn the_summary_has_one_line_per_tier_and_a_total() {
    let row = |name, counts, millis| Row { name, counts, took: Duration::from_millis(millis) };
    let mut rows = [row("lint", counts(15, 0, 0), 4210), row("control plane", counts(3, 1, 2), 61_000)];
    let text = table(&rows);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "tier                  passed  failed  skipped  seconds",
            "lint                      15       0        0      4.2",
            "control plane              3       1        2     61.0",
            "18 passed, 1 failed, 2 skipped",
        ]
    );
    strict(&mut rows);
    assert!(table(&rows).ends_with("\n18 passed, 3 failed, 0 skipped\n"));
}
