//! Writes a batch with a compression that no client knows. It needs no client, so other crates include this file.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Appends a batch whose records nobody can decompress. Only a mock cluster takes it.
pub fn push_unknown_compression(broker: &str, topic: &str, partition: i32) {
    let records = b"not compressed";
    let attributes = 7_i16;
    let time = [0; 8];
    // The version of the format, a checksum that nobody checks, and no producer id, epoch and sequence.
    let (magic, checksum, producer) = ([2], [0; 4], [0xff; 14]);
    let body = [
        &(-1_i32).to_be_bytes()[..],
        &magic,
        &checksum,
        &attributes.to_be_bytes(),
        &0_i32.to_be_bytes(),
        &time,
        &time,
        &producer,
        &1_i32.to_be_bytes(),
        records,
    ]
    .concat();
    let batch = [&0_i64.to_be_bytes()[..], &(body.len() as i32).to_be_bytes(), &body].concat();
    // Produce in version 3: no transaction, acks of all, a timeout, one topic with one partition.
    let header = [0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff];
    let request = [
        &header[..],
        &[0xff, 0xff, 0xff, 0xff],
        &10_000_i32.to_be_bytes(),
        &1_i32.to_be_bytes(),
        &(topic.len() as i16).to_be_bytes(),
        topic.as_bytes(),
        &1_i32.to_be_bytes(),
        &partition.to_be_bytes(),
        &(batch.len() as i32).to_be_bytes(),
        &batch,
    ]
    .concat();
    let mut stream = TcpStream::connect(broker).expect("the broker listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("the timeout is not zero");
    stream.write_all(&(request.len() as i32).to_be_bytes()).expect("the broker reads");
    stream.write_all(&request).expect("the broker reads");
    // Length, number, topics, the name of the topic, partitions, the number of the partition, error.
    let mut answer = vec![0; 4 + 4 + 4 + 2 + topic.len() + 4 + 4 + 2];
    stream.read_exact(&mut answer).expect("the broker answers");
    assert_eq!(answer[answer.len() - 2..], [0, 0], "the broker refuses the batch");
}
