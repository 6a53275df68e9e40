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
    ) async throws(ApusError) -> CallMediaRight {
        let key = CallMediaTable.Key(connection: ObjectIdentifier(connection), call: try Self.id(call))
        // Before the call is asked: its end may come while the answer is on its way.
        media.add(key, session, isGranted: false, onChange: onChange)
        do throws(ApusError) {
            let right = try await right(of: session, key)
            guard !connection.isClosed, media.confirmed(key, right) else { throw ApusError(.callUnknown) }
            return right
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
            CallMediaTable.Key(connection: ObjectIdentifier(connection), call: id), session, isGranted: true,
            onChange: onChange)
    }

    package func isOpen(_ call: String, on connection: any ClientConnection) -> Bool {
        guard let id = CallID(rawValue: call) else { return false }
        return media.has(CallMediaTable.Key(connection: ObjectIdentifier(connection), call: id))
    }

    package func closed(_ connection: any ClientConnection) { media.closed(ObjectIdentifier(connection)) }

    private static func id(_ call: String) throws(ApusError) -> CallID {
        guard let id = CallID(rawValue: call) else { throw ApusError(.callUnknown) }
        _ = try id.address()
        return id
    }

    private func refused(_ key: CallMediaTable.Key, _ error: ApusError) {
        let isLasting = error.code.ends(.publishing) || [.callRequestFailed, .malformed].contains(error.code)
        if isLasting { media.end(key, error) } else { media.failed(key) }
    }

    /// What the client may publish and play in the call. If one side has lost its right to the other, or is a device
    /// that was disabled, the call ends.
    ///
    /// - Throws: as ``CallMedia/open(_:for:on:onChange:)``.
    private func right(
        of session: Session, _ key: CallMediaTable.Key
    ) async throws(ApusError) -> CallMediaRight {
        let id = key.call
        let client = try Self.client(session)
        let parties = try await ref(id).ask(
            CallPeek.with { ($0.party, $0.endpoint) = (client.party, client.endpoint.rawValue) },
            timeout: Self.askTimeout)
        let side: ChannelSide
        switch parties.side {
        case .caller: side = .caller
        case .winner: side = .winner
        case .unspecified, .UNRECOGNIZED:
            if parties.over {
                // A client that has lost the right receives 8003, also if the call has ended for it already.
                guard parties.hasWinner, let error = try await refusal(of: parties.winner, by: parties.caller)
                else { throw ApusError(.callUnknown) }
                throw error
            }
            if parties.hasWinner { throw ApusError(.answeredByOthers) }
            throw ApusError(.callParametersInvalid, "nobody has accepted the call yet")
        }
        let peer = side == .caller ? parties.winner : parties.caller
        // Before the right is checked: if it is lost during the check, the session ends.
        let device = peer.kind == .device ? DeviceID(unchecked: peer.id) : nil
        if session.role == .app, let device { sessions.uses(device, in: session) }
        if let error = try await refusal(of: parties.winner, by: parties.caller) {
            let failure = CallReport.with {
                ($0.party, $0.endpoint) = (client.party, client.endpoint.rawValue)
                ($0.kind, $0.number) = (.failed, ErrorCode.mediaDisconnected.number)
            }
            // Before the call ends, which ends the media with −2508.
            media.end(key, error)
            _ = try? await ref(id).ask(failure, timeout: Self.askTimeout)
            throw error
        }
        return CallMediaRight(side: side, peer: device)
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
                            let right = try await self.right(of: session, key)
                            _ = self.media.confirmed(key, right)
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
