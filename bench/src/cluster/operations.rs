//! Runs many parallel operations on a cluster, as clients do.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_client::{Cluster, ClusterStore};
use copal_testkit::Random;
use copal_volume::{PutOptions, VolumeError, VolumeId, VolumeOptions};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Time limit of one operation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Deadline of an operation that begins now.
pub(crate) fn end() -> Instant {
    Instant::now() + PATIENCE
}

/// Runs `work` for each number below `count`, with `at_once` in flight; the first error ends the run.
pub(crate) fn each<Work, Done>(store: &ClusterStore, at_a_time: usize, count: u64, work: Work) -> Result<()>
where
    Work: Fn(Cluster, u64) -> Done + Send + Sync + 'static,
    Done: Future<Output = Result<()>> + Send + 'static,
{
    let (work, next) = (Arc::new(work), Arc::new(AtomicU64::new(0)));
    store.wait(async {
        let tasks: Vec<_> = (0..at_a_time)
            .map(|_| {
                let (work, next) = (Arc::clone(&work), Arc::clone(&next));
                let cluster = store.cluster().clone();
                tokio::spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok(());
                        }
                        if let Err(error) = work(cluster.clone(), number).await {
                            // The drop of the set ends the other tasks.
                            next.store(count, Ordering::Relaxed);
                            return Err(error);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.context("a task of the load")??;
        }
        Ok(())
    })
}

/// Creates top-level volumes named by their numbers; existing ones are looked up.
pub(crate) fn volumes(store: &ClusterStore, count: u64) -> Result<Arc<Vec<VolumeId>>> {
    let mut made = Vec::new();
    for number in 0..count {
        let (name, options) = (format!("v{number}"), VolumeOptions::default());
        let volume = store.wait(store.cluster().create_volume("", &name, &options, end()));
        made.push(match volume {
            Ok(vid) | Err(VolumeError::VolumeExists { vid }) => vid,
            Err(error) => return Err(error.into()),
        });
    }
    Ok(Arc::new(made))
}

/// Creates `files` files of `bytes` each, over the volumes in turn.
pub(crate) fn create(
    store: &ClusterStore,
    volumes: &Arc<Vec<VolumeId>>,
    files: u64,
    bytes: usize,
    word: &str,
) -> Result<()> {
    let (volumes, word) = (Arc::clone(volumes), word.to_owned());
    let body = random_bytes(bytes);
    each(store, 16, files, move |cluster, number| {
        let vid = volumes[(number % volumes.len() as u64) as usize];
        let (name, body) = (format!("{word}{number}"), body.clone());
        async move {
            let options = PutOptions::default();
            cluster.put(vid, name.as_bytes(), body, &options, end()).await?;
            Ok(())
        }
    })
}

/// Incompressible bytes.
pub(crate) fn random_bytes(len: usize) -> Bytes {
    let mut random = Random::new(len as u64 + 1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Coefficient of determination (R squared) of a line through points of x and y.
pub(crate) fn r_squared(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let both = spread(&|point| (point.0 - x) * (point.1 - y));
    let (xs, ys) = (spread(&|point| (point.0 - x).powi(2)), spread(&|point| (point.1 - y).powi(2)));
    both * both / (xs * ys)
}

#[cfg(test)]
mod tests {
    use super::r_squared;

    #[test]
    fn points_on_a_line_have_r_squared_1_and_others_less() {
        let on: Vec<(f64, f64)> = [1.0, 2.0, 7.0].map(|x| (x, 3.0 * x + 2.0)).into();
        assert!((r_squared(&on) - 1.0).abs() < 1e-12);
        let off = [(1.0, 1.0), (2.0, 4.0), (3.0, 1.0)];
        assert!(r_squared(&off) < 0.1);
    }
}
