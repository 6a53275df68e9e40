package import ApusCluster
package import ApusContract
package import ApusCore
import ApusSessions
package import ApusTransport
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

/// An operator's request that another node carries out.
extension ForwardRequest: NodeMessage {
    package typealias Reply = ForwardReply
    package static var method: UInt16 { 0x0044 }
}

/// Carries operators' requests to the nodes that they concern (D17).
///
/// Isolation: any thread.
package final class ClientForwarding: Sendable {
    private static let timeout = Duration.seconds(5)

    private let view: ClusterView
    private let transport: Transport
    /// The requests that other nodes may send here.
    private let operations = Mutex<[UInt16: ClientOperation]>([:])

    package init(view: ClusterView, transport: Transport, dispatcher: NodeDispatcher) {
        (self.view, self.transport) = (view, transport)
        dispatcher.on(ForwardRequest.self) { [weak self] _, message throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            return try await received(message)
        }
    }

    /// Lets other nodes send this request here. Its handler must not forward what names this node.
    package func allow(_ operation: ClientOperation) {
        operations.withLock { $0[operation.info.number] = operation }
    }

    /// Carries the request out at another node.
    ///
    /// - Throws: 8002 where there is no such node, 10010 where it cannot be reached, 10005, or its error.
    package func ask<M: ClientRequestMessage>(
        _ node: String, _ message: M, _ call: ClientCall
    ) async throws(ApusError) -> M.Reply {
        guard let name = NodeName(rawValue: node), view.map.member(named: name)?.state.isAlive ?? false else {
            throw ApusError(.targetUnknown, "there is no node of this name")
        }
        guard let bytes: [UInt8] = try? message.serializedBytes() else { throw ApusError(.internalFailure) }
        let request = ForwardRequest.with {
            ($0.number, $0.message) = (UInt32(M.info.number), Data(bytes))
            ($0.access, $0.account) = (call.session.access.rawValue, call.session.account.rawValue)
        }
        let answer = try await transport.ask(name, request, timeout: min(try call.timeLeft(), Self.timeout))
        guard let reply = try? M.Reply(serializedBytes: answer.message) else { throw ApusError(.malformed) }
        return reply
    }

    /// The other nodes that are alive.
    package var others: [String] {
        view.map.members.filter { $0.state.isAlive && $0.id != view.local }.map(\.id.name.rawValue)
    }

    /// True for this node's name.
    package func isHere(_ node: String) -> Bool { node == view.local.name.rawValue }

    private func received(_ message: ForwardRequest) async throws(ApusError) -> ForwardReply {
        guard let number = UInt16(exactly: message.number),
            let operation = operations.withLock({ $0[number] })
        else { throw ApusError(.methodUnknown) }
        guard let access = AccessID(rawValue: message.access), let account = AccountID(rawValue: message.account) else {
            throw ApusError(.malformed)
        }
        let session = Session(
            id: "-", role: .admin, access: access, account: account, device: nil, sinceMilliseconds: 0,
            token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
        let call = ClientCall(session: session, deadline: .now() + Self.timeout)
        let reply = try await operation.read(ByteBuffer(bytes: message.message), .binary).run(call)
        return .with { $0.message = Data(reply.readableBytesView) }
    }
}
