/// What a point-to-point message carries. It is moved to the receiver, never copied.
pub trait Payload: Send + 'static {
    /// Bytes the message would put on a wire, as counted in
    /// [`Counters`](crate::Counters).
    fn bytes(&self) -> u64;
}

impl Payload for Vec<f32> {
    fn bytes(&self) -> u64 {
        size_of_val(self.as_slice()) as u64
    }
}
