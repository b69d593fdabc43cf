//! ad-hoc
use lazaret_core::store::*;
use lazaret_core::*;
use lazaret_store_sqlite::*;
use std::sync::Arc;
use std::time::Instant;
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let n: u64 = std::env::args().nth(1).map_or(100_000, |a| a.parse().unwrap());
    let path = std::env::args().nth(2).unwrap_or("/work/rate.db".into());
    for ext in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{path}{ext}"));
    }
    let kib: u32 = std::env::var("KIB").map_or(65536, |k| k.parse().unwrap());
    let store = SqliteStore::open(&path, Options { cache_kib: kib, ..Options::default() }).unwrap();
    let queue = QueueName::of("orders", "orders");
    for round in 0..3u64 {
        let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let started = Instant::now();
        let tasks: Vec<_> = (0..64u64)
            .map(|_| {
                let (store, queue, next) = (store.clone(), queue.clone(), next.clone());
                tokio::spawn(async move {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if i >= n {
                            break;
                        }
                        let seq =
                            format!("key-{}", (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (n / 10 + 1));
                        let m = Message::new(
                            format!("evt-{round}-{i}"),
                            "orders",
                            Position::new((i % 8) as u32, i),
                        )
                        .with_key(seq.clone())
                        .with_payload(vec![b'x'; 1024]);
                        let mut letter =
                            Letter::new(queue.clone(), SequenceId::new(seq), m.into(), Timestamp::now());
                        letter.state = LetterState::Dead;
                        letter.cause =
                            Some(Failure::new(Reason::TIMEOUT, "HttpError", "no answer after 10s"));
                        let item = HandOff { letter, placement: Placement::Open, grant: None };
                        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        let took = started.elapsed();
        println!("round {round}: {n} hand-offs in {took:?}: {:.0}/s", n as f64 / took.as_secs_f64());
    }
}
