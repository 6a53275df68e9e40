package import ApusClientAPI
import ApusCluster
package import ApusCore
package import ApusMediaAccess
package import ApusSessions
import CoreMetrics
import SwiftProtobuf

/// The media of calls (CALL-13): the call decides who publishes and plays in it. A client publishes the channel of its
/// side, and plays that of the other.
extension CallService: ChannelAuthority {
    package var endedError: ApusError { ApusError(.callUnknown) }

    package func channels(of owner: ChannelOwner) -> [ChannelID] {
        guard case .call(let call) = owner else { return [] }
        return ChannelSide.allCases.map { ChannelID(call: call, side: $0) }
    }

    /// - Throws: −2508 if there is no such call or it is over, −2500 if nobody has accepted it yet, −2522 if another
    ///   client has, 8003 if the client has no part in it or has lost its right to the other side, 20011 if a device in
    ///   it was disabled, 12004 for a session that takes no calls; 10005, 10010 and 10021 if the call cannot be asked.
    package func open(
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) async throws(ApusError) -> MediaRight {
        let key = CallMediaTable.Key(connection: ObjectIdentifier(connection), call: try Self.call(owner))
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
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) {
        guard let id = try? Self.call(owner) else { return }
        media.add(
            CallMediaTable.Key(connection: ObjectIdentifier(connection), call: id), session, isGranted: true,
            onChange: onChange)
    }

    package func isOpen(_ owner: ChannelOwner, on connection: any ClientConnection) -> Bool {
        guard case .call(let id) = owner else { return false }
        return media.has(CallMediaTable.Key(connection: ObjectIdentifier(connection), call: id))
    }

    package func closed(_ connection: any ClientConnection) { media.closed(ObjectIdentifier(connection)) }

    private static func call(_ owner: ChannelOwner) throws(ApusError) -> CallID {
        guard case .call(let named) = owner, let id = CallID(rawValue: named.rawValue) else {
            throw ApusError(.callUnknown)
        }
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
    /// - Throws: as ``open(_:for:on:onChange:)``.
    private func right(
        of session: Session, _ key: CallMediaTable.Key
    ) async throws(ApusError) -> MediaRight {
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
        return MediaRight(
            publishes: ChannelID(call: id, side: side), plays: [ChannelID(call: id, side: side.other)],
            devices: device.map { [$0] } ?? [])
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
