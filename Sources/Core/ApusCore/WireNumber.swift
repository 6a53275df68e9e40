/// The largest numbers that are taken from another node, a client or the ownership store (D13).
///
/// They are far beyond what any honest sender reaches, and far enough below the ends of their types that a sum of a
/// few of them cannot overflow. Decoders check them, so that nobody behind a decoder has to.
public enum WireNumber {
    /// The largest sequence number, of a frame or of a session's order.
    public static let sequenceMax: UInt64 = 1 << 62
    /// The largest "every number below this": one more than ``sequenceMax``.
    public static let nextMax = sequenceMax + 1
    /// The largest epoch of a shard: two billion changes of its owner.
    public static let termMax: Epoch = 1 << 31
    /// The largest incarnation of a node.
    public static let incarnationMax: UInt64 = 1 << 62
}
