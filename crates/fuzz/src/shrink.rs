//! Shrinks a failing input.

/// The maximum number of attempts.
const ATTEMPTS: usize = 3000;

/// Removes parts of the input as long as it still fails.
pub(crate) fn shrink(input: &[u8], fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut attempts = 0;
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < best.len() {
            attempts += 1;
            if attempts > ATTEMPTS {
                return best;
            }
            let mut shorter = best.clone();
            shorter.drain(at..(at + size).min(best.len()));
            if fails(&shorter) {
                (best, has_shrunk) = (shorter, true);
            } else {
                at += size;
            }
        }
        if !has_shrunk || size > 1 {
            size /= 2;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fails_is_left() {
        let input: Vec<u8> = (0..=255).collect();
        let fails = |input: &[u8]| input.contains(&7) && input.contains(&200);
        assert_eq!(shrink(&input, fails), [7, 200]);
    }
}
