/// The largest numbers that are accepted from another node, a client or the ownership store (D13).
///
/// They are far beyond what a correct sender reaches, and far enough below the limits of their types that a sum of a
/// few of them cannot overflow. Decoders check them, so code behind a decoder need not.
public enum WireNumber {
    /// The largest sequence number, of a frame or of a session's order.
    public static let sequenceMax: UInt64 = 1 << 62
    /// The largest "every number below this": ``sequenceMax`` plus one.
    public static let nextMax = sequenceMax + 1
    /// The largest epoch of a shard: two billion changes of its owner.
    public static let termMax: Epoch = 1 << 31
    /// The largest incarnation of a node.
    public static let incarnationMax: UInt64 = 1 << 62
}
