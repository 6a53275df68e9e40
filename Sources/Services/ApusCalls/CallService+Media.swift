package import ApusClientAPI
import ApusCluster
package import ApusCore
package import ApusSessions
import CoreMetrics
import SwiftProtobuf

extension CallService: CallMedia {
    package func open(
        _ call: String, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (CallMediaChange) -> Void
    ) async throws(ApusError) -> CallChannel.Side {
        let key = CallMediaTable.Key(connection: ObjectIdentifier(connection), call: try Self.id(call))
        // Before the call is asked: its end may come while the answer is on its way.
        media.add(key, session, isAsking: true, onChange: onChange)
        do throws(ApusError) {
            let side = try await side(of: session, in: key.call)
            guard !connection.isClosed, media.confirmed(key) else { throw ApusError(.callUnknown) }
            return side
        } catch {
            refused(key, error)
            throw error
        }
    }

    package func resume(
        _ call: String, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (CallMediaChange) -> Void
    ) {
        guard let id = try? Self.id(call) else { return }
        media.add(
            CallMediaTable.Key(connection: ObjectIdentifier(connection), call: id), session, isAsking: false,
            onChange: onChange)
    }

    package func closed(_ connection: any ClientConnection) { media.closed(ObjectIdentifier(connection)) }

    private static func id(_ call: String) throws(ApusError) -> CallID {
        guard let id = CallID(rawValue: call) else { throw ApusError(.callUnknown) }
        _ = try id.address()
        return id
    }

    private func refused(_ key: CallMediaTable.Key, _ error: ApusError) {
        if error.code.ends(.publishing) { media.end(key, error) } else { media.failed(key) }
    }

    /// The side that the client has in the call.
    ///
    /// - Throws: as ``CallMedia/open(_:for:on:onChange:)``.
    private func side(of session: Session, in id: CallID) async throws(ApusError) -> CallChannel.Side {
        let client = try Self.client(session)
        let parties = try await ref(id).ask(
            CallPeek.with { ($0.party, $0.endpoint) = (client.party, client.endpoint.rawValue) },
            timeout: Self.askTimeout)
        let side: CallChannel.Side
        switch parties.side {
        case .caller: side = .caller
        case .winner: side = .winner
        case .unspecified, .UNRECOGNIZED:
            if parties.over { throw ApusError(.callUnknown) }
            if parties.hasWinner { throw ApusError(.answeredByOthers) }
            throw ApusError(.callParametersInvalid, "nobody has accepted the call yet")
        }
        let peer = side == .caller ? parties.winner : parties.caller
        // Before the right is checked: if it is lost meanwhile, the session ends.
        if session.role == .app, peer.kind == .device { sessions.uses(DeviceID(unchecked: peer.id), in: session) }
        guard try await mayCall(parties.caller, parties.winner) else { throw ApusError(.illegalRelation) }
        return side
    }

    /// Asks the calls of this node's clients again, until the task is cancelled.
    func checkMedia() async {
        let active = Gauge(label: "apus_calls_media_clients")
        await withDiscardingTaskGroup { group in
            while (try? await Task.sleep(for: Self.checkTick)) != nil {
                active.record(Double(media.count))
                for (key, session) in media.takeDue(Self.checksPerTick) {
                    group.addTask {
                        do throws(ApusError) {
                            _ = try await self.side(of: session, in: key.call)
                            _ = self.media.confirmed(key)
                        } catch {
                            self.refused(key, error)
                        }
                    }
                }
            }
        }
    }

    private static let checkTick = Duration.milliseconds(100)
    /// Each takes an entity request, and reads a record.
    private static let checksPerTick = 32
    private static let askTimeout = Duration.seconds(5)
}
