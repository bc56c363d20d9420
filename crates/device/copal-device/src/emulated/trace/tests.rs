//! Lines of several kernels, hostile lines, and the order of a replay.

use super::*;
use crate::emulated::{HddModel, HddProfile};
use crate::random::DeviceRandom;

const LOOP: DeviceNumber = DeviceNumber { major: 7, minor: 0 };

fn read(text: &[u8]) -> BlockTrace {
    BlockTrace::read(text).unwrap()
}

fn command(kind: CommandKind, sector: u64, sectors: u64) -> ModelCommand {
    ModelCommand { kind, at: sector * 512, len: sectors * 512 }
}

const FLUSH: ModelCommand = ModelCommand { kind: CommandKind::Flush, at: 0, len: 0 };

#[test]
fn lines_of_older_and_newer_kernels_are_read() {
    let text = b"# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
           copal-99      [001] d..1.   100.000001: block_rq_issue: 7,0 RA 4096 () 8 + 8 [copal]
 a b: c] (x)-7 [000] ..... 100.5: block_rq_issue: 7,0 WS 8192 () 16 + 16 none,0,0 [a b: c] (x)]
   kworker/0:1H-5   [000] 101: block_rq_issue: 7,0 FF 0 () 0 + 0 be,0,4 [kworker]
   kworker/0:1H-5   [000] 102.1: block_rq_issue: 7,0 WFSM 4096 () 32 + 8 [kworker]
   kworker/0:1H-5   [000] 103.1: block_rq_issue: 7,0 FWFS 4096 () 40 + 8 [kworker]
   kworker/0:1H-5   [000] 104.1: block_rq_issue: 7,0 FWS 0 () 18446744073709551615 + 0 [kworker]
   kworker/0:1H-5   [000] 105.1: block_rq_issue: 259,3 DS 1048576 () 2048 + 2048 [x]
   hdparm-5         [000] 106.1: block_rq_issue: 7,0 N 512 (ec 00 00) 0 + 0 [hdparm]
   copal-99         [000] 107.1: block_bio_queue: 7,0 R 8 + 8 [copal]
";
    let trace = read(text);
    let commands: Vec<ModelCommand> = trace.commands(LOOP).iter().map(|traced| traced.command).collect();
    let expected = [
        command(CommandKind::Read, 8, 8),
        command(CommandKind::Write, 16, 16),
        FLUSH,
        command(CommandKind::WriteThrough, 32, 8),
        FLUSH,
        command(CommandKind::WriteThrough, 40, 8),
        FLUSH,
    ];
    assert_eq!(commands, expected);
    let devices: Vec<(String, usize)> =
        trace.devices().map(|(device, count)| (device.to_string(), count)).collect();
    assert_eq!(devices, [("7:0".to_owned(), 7), ("259:3".to_owned(), 1)]);
    assert_eq!(
        trace.commands("259,3".parse().unwrap())[0].command,
        command(CommandKind::Discard, 2048, 2048)
    );
    assert_eq!(trace.unknown_lines(), 2);
    assert!("7".parse::<DeviceNumber>().is_err() && "7:x".parse::<DeviceNumber>().is_err());
}

fn line(micros: u64, event: &str, sector: u64) -> String {
    let bytes = if event == "complete" { "" } else { "4096 " };
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    format!("c-1 [0] {seconds}.{micros:06}: block_rq_{event}: 7,0 R {bytes}() {sector} + 8 [c]\n")
}

fn ahead(lines: &[(u64, &str, u64)]) -> Vec<u32> {
    let text: String = lines.iter().map(|(micros, event, sector)| line(*micros, event, *sector)).collect();
    read(text.as_bytes()).commands(LOOP).iter().map(|traced| traced.ahead).collect()
}

#[test]
fn commands_in_the_device_are_counted_by_completions() {
    let lines = [
        (1, "issue", 0),
        (2, "issue", 8),
        (90, "issue", 16),
        (100, "complete", 0),
        (101, "complete", 16),
        (102, "issue", 24),
        (103, "complete", 8),
        (104, "complete", 24),
        (105, "complete", 999),
        (106, "issue", 32),
    ];
    assert_eq!(ahead(&lines), [0, 1, 2, 1, 0]);
}

#[test]
fn without_completions_commands_close_together_in_time_were_in_the_device_together() {
    let lines = [
        (1000, "issue", 0),
        (1010, "issue", 8),
        (1019, "issue", 16),
        (1030, "issue", 24),
        (1029, "issue", 32),
    ];
    assert_eq!(ahead(&lines), [0, 1, 2, 0, 1]);
    // The parts of one long read, as a kernel issued them.
    let parts = [(831, 0), (861, 1024), (2051, 2048), (2068, 3072), (2924, 4096)];
    let text: String = parts
        .iter()
        .map(|(micros, sector)| {
            format!("dd-1 [1] 1.{micros:06}: block_rq_issue: 7,0 RS 524288 () {sector} + 1024 be,0,4 [dd]\n")
        })
        .collect();
    let ahead: Vec<u32> = read(text.as_bytes()).commands(LOOP).iter().map(|traced| traced.ahead).collect();
    assert_eq!(ahead, [0, 1, 0, 1, 0]);
}

/// The kernel completes the data of a durable write, flushes, and completes the same command again, without bytes.
#[test]
fn a_durable_write_without_fua_ends_once() {
    let text = b"dd-1 [1] 1.000001: block_rq_issue: 7,0 WS 524288 () 0 + 1024 be,0,4 [dd]
dd-1 [1] 1.000002: block_rq_issue: 7,0 WS 524288 () 1024 + 1024 be,0,4 [dd]
ksoftirqd/1-22 [1] 1.000100: block_rq_complete: 7,0 WS () 0 + 1024 be,0,4 [0]
kworker/1:1H-44 [1] 1.000101: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/1:1H]
ksoftirqd/1-22 [1] 1.000200: block_rq_complete: 7,0 FF () 18446744073709551615 + 0 none,0,0 [0]
ksoftirqd/1-22 [1] 1.000201: block_rq_complete: 7,0 WS () 0 + 0 be,0,4 [0]
dd-1 [1] 1.000202: block_rq_issue: 7,0 WS 524288 () 2048 + 1024 be,0,4 [dd]
";
    let ahead: Vec<u32> = read(text).commands(LOOP).iter().map(|traced| traced.ahead).collect();
    assert_eq!(ahead, [0, 1, 1, 1]);
}

#[test]
fn a_requeued_command_counts_once() {
    let lines = [
        (1, "issue", 0),
        (2, "issue", 8),
        (3, "requeue", 8),
        (9, "complete", 0),
        (10, "issue", 8),
        (11, "complete", 8),
    ];
    assert_eq!(ahead(&lines), [0, 0]);
}

#[test]
fn a_replay_hands_over_what_the_traced_device_had_and_no_more() {
    let read = |sector| command(CommandKind::Read, sector, 2048);
    let traced = |ahead| {
        let together = |place| if place == 0 { 0 } else { ahead };
        (0..50)
            .map(|place| TraceCommand { command: read(place * 2048), ahead: together(place as u32) })
            .collect()
    };
    let time = |commands: Vec<TraceCommand>| {
        let summary = ReplaySummary::replay(&commands, &mut HddModel::new(1 << 40, HddProfile::default()));
        assert_eq!((summary.reads, summary.read_bytes), (50, 50 << 20));
        summary.time.as_secs_f64()
    };
    let (alone, queued) = (time(traced(0)), time(traced(1)));
    assert!((alone / 50.0 - (8.333e-3 + 5.461e-3)).abs() < 0.3e-3, "{alone}");
    assert!((queued / 50.0 - 5.461e-3).abs() < 0.3e-3, "{queued}");
}

/// The source is a file that a person names: any bytes must be read to the end.
#[test]
fn hostile_lines_are_counted_and_skipped() {
    let good = line(5, "issue", 8);
    let bad: [&[u8]; 15] = [
        b": block_rq_issue:",
        b": block_rq_issue: )",
        b"1.0: block_rq_issue: 7,0 R 1 () 99999999999999999999 + 8 [x]",
        b"1.0: block_rq_issue: 7,0 R 1 () 18446744073709551615 + 8 [x]",
        b"1.0: block_rq_issue: 7,0 R 1 () 8 + 4294967296 [x]",
        b"1.0: block_rq_issue: 7,0 R 1 () 8 8 [x]",
        b"1.0: block_rq_issue: 7,0 W 1 () 8 + 4294967295 [x]",
        b"1.0: block_rq_issue: 7,99999999999 R 1 () 8 + 8 [x]",
        b"99999999999.0: block_rq_issue: 7,0 R 1 () 8 + 8 [x]",
        b"1.\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4: block_rq_issue: 7,0 R 1 () 8 + 8 [x]",
        b"-1.-1: block_rq_issue: 7,0 R 1 () 8 + 8 [x]",
        b"1.0: block_rq_issue: 7,0 \xff\xff 1 () 8 + 8 [x]",
        b"1.0: block_rq_issue: 7,0 \xc3\xa4R 1 () 8 + 8 [x]",
        b"1.0: block_rq_insert: 7,0 R 1 () 8 + 8 [x]",
        b"\0\0\0",
    ];
    for line in bad {
        let trace = read(&[line, b"\n", good.as_bytes()].concat());
        assert_eq!((trace.commands(LOOP).len(), trace.unknown_lines()), (1, 1), "{}", line.escape_ascii());
    }
    let long = [vec![b'x'; 3 * LINE_BYTES as usize].as_slice(), good.as_bytes(), good.as_bytes()].concat();
    let trace = read(&long);
    assert_eq!((trace.commands(LOOP).len(), trace.unknown_lines()), (1, 1), "an overlong line is one line");
}

/// Valid lines with a few bytes changed, cut or doubled.
#[test]
fn no_text_panics() {
    let text: String =
        ["issue", "complete", "requeue", "issue"].iter().map(|event| line(123_456_789, event, 8)).collect();
    let mut random = DeviceRandom::new(7);
    for _ in 0..20_000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes.truncate(at + 1),
                _ => bytes.extend_from_within(at..),
            }
        }
        crate::probe::fuzz::DECODERS.iter().for_each(|(_, decode)| decode(&bytes));
    }
}
