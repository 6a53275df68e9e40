import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import NIOCore

/// What the messages of a WebSocket mean: the protocol that its client speaks.
///
/// An error that is thrown closes the connection.
///
/// Concurrency model: confined to the connection's event loop.
protocol WebSocketDialect: AnyObject {
    /// The connection was upgraded. Its client has no session yet.
    func connected(_ connection: WebSocketConnection) throws(ApusError)
    func received(_ text: ByteBuffer, on connection: WebSocketConnection) throws(ApusError)
    func received(binary bytes: ByteBuffer, on connection: WebSocketConnection) throws(ApusError)
    /// The session is open.
    func opened(_ session: Session, _ welcome: ClientWelcome, on connection: WebSocketConnection) throws(ApusError)
    /// The answer to ``WebSocketConnection/ask(_:_:_:_:of:time:trace:)``.
    func answered(_ id: UInt32, _ result: Result<ByteBuffer, ApusError>, on connection: WebSocketConnection)
    /// An event of a topic or of the client's identity, which the socket takes now.
    func received(_ event: ClientEventFrame, on connection: WebSocketConnection)
    /// The socket takes bytes again.
    func becameWritable()
    /// The node leaves, or cannot serve this client any more: it is asked to connect to one of these addresses.
    func leave(for endpoints: [String], on connection: WebSocketConnection)
    /// About once a second, while the session is open.
    func looked(at now: MonotonicTime, on connection: WebSocketConnection)
    /// The text that is sent before the connection is closed with an error.
    func goodbye(_ error: ApusError) -> String
    /// The session is the newest of its identity: it may publish.
    func confirmed()
    /// The connection is closed. Nothing follows.
    func closed()
}
