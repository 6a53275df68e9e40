package import NIOCore

/// A client's connection, as far as events concern it: the port that the native protocol and WebSocket implement.
///
/// Isolation: ``received(_:)`` is called on ``eventLoop``, the rest from anywhere.
package protocol ClientConnection: AnyObject, Sendable {
    var eventLoop: any EventLoop { get }
    /// For people: `native` or `websocket`.
    var protocolName: String { get }
    /// True once nothing more is sent.
    var isClosed: Bool { get }
    /// Sends events after all that were sent before; see ``ClientEventQueue`` for what the socket does not take.
    func received(_ event: ClientEventFrame)
    /// The client subscribes to a topic from this position on (``ClientEventQueue/begin(_:at:)``). On ``eventLoop``.
    func begin(_ topic: String, at position: TopicPosition?)
}

extension ClientConnection {
    /// Sends events from anywhere, in order.
    package func send(_ events: [ClientEventFrame]) {
        eventLoop.execute { for event in events { self.received(event) } }
    }
}

extension ClientEventFrame {
    /// Sends an event to connections of any loops.
    package static func send(_ event: ClientEventFrame, to connections: [any ClientConnection]) {
        guard connections.count > 1 else {
            connections.first?.send([event])
            return
        }
        var loops: [(loop: any EventLoop, connections: [any ClientConnection])] = []
        for connection in connections {
            if let index = loops.firstIndex(where: { $0.loop === connection.eventLoop }) {
                loops[index].connections.append(connection)
            } else {
                loops.append((connection.eventLoop, [connection]))
            }
        }
        for (loop, connections) in loops {
            loop.execute { for connection in connections { connection.received(event) } }
        }
    }
}
