//! The commands of an update and of an append, and the frames of a stream, on the models.

use super::super::Study;
use crate::objects::stores::{BenchStore, StreamStore};
use anyhow::Result;
use copal_bench_harness::{chart::BarChart, model_disk::ModelDisk, report::Report};
use copal_device::emulated::{CommandKind, ModelCommand};
use copal_object::BackendKind;
use std::time::Duration;

const STORE_BYTES: u64 = 256 << 20;
const OPERATIONS: u64 = 4000;
/// Seconds of the paper's drive: an update and both appends.
const APPEND_WITH_RMW: f64 = 7.4;
const APPEND_WITH_JOURNAL: f64 = 3.0;
/// Updates in place a second: the flash drive, the disk, the drive without power-loss protection.
const UPDATES: [(ModelDisk, f64); 3] =
    [(ModelDisk::Ssd, 35_700.0), (ModelDisk::Hdd, 120.0), (ModelDisk::ConsumerSsd, 973.0)];

/// A command at one of the places of an operation.
#[derive(Clone, Copy)]
enum Step {
    /// Writes bytes of the file behind those of the operation before.
    Data(u64),
    /// Writes bytes in place.
    InPlace(u64),
    /// Writes bytes behind those of the journal.
    Journal(u64),
    Flush,
}

struct WriteSequence {
    name: &'static str,
    steps: &'static [Step],
}

const UPDATE: WriteSequence =
    WriteSequence { name: "update of 4096 B in place", steps: &[Step::InPlace(4096), Step::Flush] };
const APPEND_SECTORS: WriteSequence = WriteSequence {
    name: "append of 512 B with metadata of 512 B in place",
    steps: &[Step::Data(512), Step::Flush, Step::InPlace(512), Step::Flush],
};
/// As ext4 with a journal: data, then blocks of the transaction, then its commit block.
const APPEND_JOURNAL: WriteSequence = WriteSequence {
    name: "append of 4096 B with a journal of whole pages",
    steps: &[Step::Data(4096), Step::Journal(5 * 4096), Step::Flush, Step::Journal(4096), Step::Flush],
};

impl WriteSequence {
    /// Operations a second, one command at a time.
    fn rate(&self, disk: ModelDisk) -> f64 {
        let mut model = disk.model(STORE_BYTES);
        let (mut data, mut journal, mut place) = (64 << 20, 128 << 20, 0_u64);
        let mut id = 0;
        for _ in 0..OPERATIONS {
            for step in self.steps {
                let command = |kind, at, len| ModelCommand { kind, at, len };
                let command = match *step {
                    Step::Flush => command(CommandKind::Flush, 0, 0),
                    Step::Data(len) => {
                        data += len;
                        command(CommandKind::Write, data - len, len)
                    }
                    Step::Journal(len) => {
                        journal += len;
                        command(CommandKind::Write, journal - len, len)
                    }
                    Step::InPlace(len) => {
                        // One track: an update in place of the same page misses a turn and no more.
                        place = (place + 1) % 16;
                        command(CommandKind::Write, place * 4096, len)
                    }
                };
                model.accept(id, command, model.now());
                model.serve();
                id += 1;
            }
        }
        OPERATIONS as f64 / model.now().as_secs_f64()
    }

    fn commands(&self) -> f64 {
        self.steps.len() as f64
    }
}

pub(super) fn play(study: &mut Study, chart: &mut BarChart) -> Result<()> {
    let models: Vec<_> = study.disks.iter().filter_map(|kind| kind.model()).collect();
    for (disk, wanted) in UPDATES {
        let as_model = if disk == ModelDisk::ConsumerSsd { ModelDisk::Ssd } else { disk };
        if !models.contains(&as_model) {
            continue;
        }
        let report = &mut study.report;
        for sequence in [UPDATE, APPEND_SECTORS, APPEND_JOURNAL] {
            let rate = sequence.rate(disk);
            let row = format!("{}: {}", disk.name(), sequence.name);
            match sequence.name == UPDATE.name && disk != ModelDisk::Hdd {
                true => report.within(&row, rate, "/s", wanted, wanted / 10.0),
                false => report.fact(&row, rate, "/s"),
            }
            chart.bar(row, rate);
        }
        streams(report, disk, chart)?;
        if disk == ModelDisk::Ssd {
            shares(report);
        }
    }
    Ok(())
}

/// The paper's ratio, and its two factors.
fn shares(report: &mut Report) {
    let update = UPDATE.rate(ModelDisk::Ssd);
    for (append, wanted) in [(APPEND_SECTORS, APPEND_WITH_RMW), (APPEND_JOURNAL, APPEND_WITH_JOURNAL)] {
        let rate = append.rate(ModelDisk::Ssd);
        let row = format!("SSD model: update / {}", append.name);
        report.within(&row, update / rate, "x", wanted, wanted / 10.0);
        let without = append.rate(ModelDisk::SsdOfSectors);
        report.fact(format!("{row}: read-modify-write alone"), without / rate, "x");
        report.fact(format!("{row}: commands and bytes alone"), update / without, "x");
        report.fact(format!("{row}: commands by count"), append.commands() / UPDATE.commands(), "x");
    }
}

/// Durable frames of 512 B to a stream of each backend that lies on a device.
fn streams(report: &mut Report, disk: ModelDisk, chart: &mut BarChart) -> Result<()> {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let device = disk.device(STORE_BYTES);
        let store = StreamStore::new(BenchStore::on_device(&device, backend)?)?;
        let rate = store.rate(&device.clock(), 512, 1, OPERATIONS, Duration::ZERO)?;
        let row = format!("{}: append of 512 B to a stream, {}", disk.name(), backend.name());
        report.fact(&row, rate, "/s");
        chart.bar(row, rate);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's ratio of more than 4 lies between both: read-modify-write with metadata of a sector, and the journal alone.
    #[test]
    fn read_modify_write_and_the_journal_are_told_apart() {
        let ratio = |append: &WriteSequence, disk| UPDATE.rate(ModelDisk::Ssd) / append.rate(disk);
        for (append, total, without) in [
            (APPEND_SECTORS, APPEND_WITH_RMW, 2.0),
            (APPEND_JOURNAL, APPEND_WITH_JOURNAL, APPEND_WITH_JOURNAL),
        ] {
            let found = ratio(&append, ModelDisk::Ssd);
            assert!((found / total - 1.0).abs() < 0.1, "{}: {found}", append.name);
            let found = ratio(&append, ModelDisk::SsdOfSectors);
            assert!((found / without - 1.0).abs() < 0.1, "{}: {found} without partial pages", append.name);
        }
    }
}
