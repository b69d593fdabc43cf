//! Deterministic pseudorandom numbers (SplitMix64), and a Zipf distribution on top of them.

/// SplitMix64: small, fast, and good enough to draw keys.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..1`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number in `0..below`.
    pub(crate) fn below(&mut self, below: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u32
    }
}

/// A Zipf distribution: ranks with weights `1, 1/2, 1/3, …`, each raised to an exponent.
pub(crate) struct Zipf {
    /// The cumulative share of each rank.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Creates a distribution over the ranks `0..ranks` with exponent 1.
    pub(crate) fn new(ranks: u32) -> Self {
        Self::with_exponent(ranks, 1.0)
    }

    /// Creates a distribution over the ranks `0..ranks`. A smaller exponent is more uniform.
    pub(crate) fn with_exponent(ranks: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += f64::from(rank).powf(-exponent);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|share| *share /= sum);
        Self { cumulative }
    }

    /// Draws a rank.
    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit();
        let rank = self.cumulative.partition_point(|share| *share <= at);
        rank.min(self.cumulative.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_comes_twice_as_often_as_the_second() {
        let (zipf, mut random) = (Zipf::new(1000), Random::new(1));
        let mut counts = vec![0_u32; 1000];
        for _ in 0..200_000 {
            counts[zipf.draw(&mut random) as usize] += 1;
        }
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert!(counts.iter().filter(|count| **count > 0).count() > 900);
    }

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.below(10), random.below(10), random.below(10)]
        };
        assert_eq!(draw(7), draw(7));
        assert!(draw(7).iter().all(|n| *n < 10));
    }
}
