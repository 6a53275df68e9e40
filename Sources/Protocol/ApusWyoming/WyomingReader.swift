package import ApusCore
package import NIOCore

/// Reads the messages of a stream, and hands them over one after another.
///
/// What receives a message may write, and a write can make the channel read: bytes that come while a message is handed
/// over are taken after it.
///
/// Concurrency model: confined to the connection's event loop.
package final class WyomingReader {
    private var decoder = WyomingDecoder()
    private var isReceiving = false

    package init() {}

    /// Takes bytes of the stream, and hands over the messages that are complete, in order.
    ///
    /// - Throws: as ``WyomingDecoder/next()`` and ``WyomingMessage/init(_:)``. The messages before were handed over,
    ///   and where the next event begins is unknown.
    package func take(
        _ bytes: ByteBuffer, _ receive: (WyomingMessage) throws(ApusError) -> Void
    ) throws(ApusError) {
        decoder.append(bytes)
        guard !isReceiving else { return }
        isReceiving = true
        defer { isReceiving = false }
        while let event = try decoder.next() { try receive(try WyomingMessage(event)) }
    }
}
