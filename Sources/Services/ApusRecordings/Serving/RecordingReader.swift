package import ApusCore
package import ApusObjectStore
package import ApusSessions
import ApusStorage

/// The bounds of what clients read of recordings.
package struct RecordingReaderLimits: Sendable, Hashable {
    /// The most segments of one play list; further ones are in the next one (the end flag of IV-E5).
    package var playListSegmentsMax = 3000
    /// How long an address is valid. It ends at the expiry of its client's token at the latest.
    package var addressLifetime = Duration.seconds(3600)
    /// How often the right to a file is read again while it is sent.
    package var rightsInterval = Duration.milliseconds(500)
    /// The most channels of one page of a list.
    package var channelPageMax = 100
    /// How often a change is repeated that another one was faster than.
    package var attemptsMax = 12

    package init() {}
}

/// Reads recordings for clients: days, times, play lists, files (IV-E3 to IV-E5). It changes what a client changes:
/// plans, protection, and the marks of what is deleted.
///
/// Rights: an account has all rights to its own recordings, also to those of a device that has become another account's
/// since. An account with a right to a device sees the recordings of the device's account. Operators have all rights.
/// What a client may not see does not exist (8002).
///
/// Isolation: `Sendable`; may be called from any task, at any node.
package struct RecordingReader: Sendable {
    package let index: RecordingIndex
    package let objects: any ObjectStore
    package let sessions: RecordingSessions
    package let limits: RecordingReaderLimits
    /// What addresses begin with, such as `https://cluster.example`; empty: they begin with their path.
    package let origin: String
    /// Unix milliseconds of the cluster's clock.
    package let now: @Sendable () -> Int64
    /// Called when the plan of a channel has changed. It must not block.
    package let planChanged: @Sendable (ChannelID) -> Void
    /// Puts what was recorded of a channel until now into the index.
    let refresh: @Sendable (RecordedChannel) async -> Void
    /// A range that ends later is read after a refresh, in microseconds before now.
    private static let refreshMicroseconds: Int64 = 120_000_000

    package init(
        index: RecordingIndex, objects: any ObjectStore, sessions: RecordingSessions,
        limits: RecordingReaderLimits = RecordingReaderLimits(), origin: String = "",
        now: @escaping @Sendable () -> Int64, planChanged: @escaping @Sendable (ChannelID) -> Void = { _ in },
        refresh: @escaping @Sendable (RecordedChannel) async -> Void = { _ in }
    ) {
        (self.index, self.objects, self.sessions, self.limits) = (index, objects, sessions, limits)
        (self.origin, self.now, self.planChanged, self.refresh) = (origin, now, planChanged, refresh)
    }

    // MARK: - Rights

    /// What a client wants to do with recordings.
    package enum Need: Sendable, Hashable {
        case view
        /// Export, protect or delete.
        case own
    }

    /// Whose recordings of a channel a client may use.
    ///
    /// - Parameters:
    ///   - account: as the request names it; empty: the device's account, or the client's own if it has no right to the
    ///     device.
    /// - Throws: 8002 if there is no such device, or the client may not; 12004 if the token does not name the device or
    ///   is not an app's or an operator's; 20011 if the device is disabled and another account's; 21031 if a name is
    ///   not valid.
    package func channel(
        _ device: String, _ source: UInt32, account: String, for session: Session, _ need: Need
    ) async throws(ApusError) -> RecordedChannel {
        let device = try DeviceID(checking: device, "the device's id")
        guard let source = UInt16(exactly: source) else {
            throw ApusError(.badParameter, "a source is at most \(UInt16.max)")
        }
        guard session.role == .app || session.role == .admin else {
            throw ApusError(.notAllowed, "recordings are for apps and operators")
        }
        guard session.allowedDevices?.contains(device) ?? true else {
            throw ApusError(.notAllowed, "the token does not name this device")
        }
        let named = account.isEmpty ? nil : try Self.account(account)
        let record = try await sessions.device(device)
        var found = RecordedChannel(account: session.account, device: device, source: source)
        guard session.role == .app else {
            guard let owner = named ?? record?.account else { throw Self.unknown }
            found.account = owner
            return found
        }
        let right = record?.right(of: session.account)
        found.account = named ?? (right == nil ? session.account : record?.account ?? session.account)
        try await check(found, session, record, need)
        return found
    }

    /// - Throws: 8002 and 20011.
    func check(
        _ channel: RecordedChannel, _ session: Session, _ record: DeviceRecord?, _ need: Need
    ) async throws(ApusError) {
        guard session.role != .admin else { return }
        if channel.account == session.account {
            // The account of before keeps its recordings. It has no others.
            guard record?.account != session.account else { return }
            guard try await index.head(of: channel) != nil else { throw Self.unknown }
        } else {
            guard need == .view, let record, record.account == channel.account,
                record.right(of: session.account) != nil
            else { throw Self.unknown }
            try record.checkEnabled()
        }
    }

    /// True if the client may export, protect and delete these recordings.
    func owns(_ channel: RecordedChannel, _ session: Session) -> Bool {
        session.role == .admin || channel.account == session.account
    }

    static let unknown = ApusError(.targetUnknown, "there is no such recording")

    static func account(_ text: String) throws(ApusError) -> AccountID {
        guard let account = AccountID(rawValue: text) else {
            throw ApusError(.badParameter, "the account is not valid")
        }
        return account
    }

    // MARK: - Reading

    /// What of the recordings of a channel can be found now.
    func view(of channel: RecordedChannel) async throws(ApusError) -> RecordingView {
        RecordingView(try await index.plan(of: channel.device, channel.source)?.body, of: channel, now: now())
    }

    /// The segments that end behind the start of a range and begin before its end, as far as one read of the index
    /// goes.
    ///
    /// - Parameter range: in microseconds of UTC.
    /// - Returns: the segments, and the time in Unix seconds up to which they are all known; nil: to the end.
    func segments(
        of channel: RecordedChannel, _ range: Range<Int64>
    ) async throws(ApusError) -> (found: [RecordedSegment], knownUntil: Int64?) {
        if range.upperBound > now() * 1000 - Self.refreshMicroseconds { await refresh(channel) }
        let view = try await view(of: channel)
        let hours = try await index.hours(
            of: channel, RecordingIndex.hour(of: range.lowerBound) - 1...RecordingIndex.hour(of: range.upperBound))
        let found = RecordedSegment.all(hours.map(\.body), in: view).filter {
            $0.end > range.lowerBound && $0.start < range.upperBound
        }
        let isWhole = hours.count < RecordingIndex.hoursMax
        return (found, isWhole ? nil : hours.last.map { ($0.body.hour + 1) * 3600 })
    }

    // MARK: - Changing

    /// Changes records that nodes write which own their shard, under the fence that they have. If another node owns the
    /// shard meanwhile and has written them, begins again.
    ///
    /// - Throws: 10030 if others change them all the time; otherwise as ``RecordStore``.
    func change<Value>(
        _ apply: () async throws(ApusError) -> (Value, RecordStep?)
    ) async throws(ApusError) -> Value {
        let conflict = ApusError(.versionConflict, "the recordings are changed by others")
        for _ in 1..<limits.attemptsMax {
            do throws(ApusError) {
                return try await index.store.change(attempts: limits.attemptsMax, otherwise: conflict, apply).value
            } catch {
                guard error.code == .staleEpoch else { throw error }
            }
        }
        throw conflict
    }

    /// - Throws: 21031 if the end is not behind the start.
    static func range(_ start: Int64, _ end: Int64) throws(ApusError) -> Range<Int64> {
        guard start >= 0, end > start, end <= 999_999_999_999 else {
            throw ApusError(.badParameter, "the end is not behind the start")
        }
        return start..<end
    }
}

extension Range<Int64> {
    /// Seconds as microseconds.
    var microseconds: Self { lowerBound * 1_000_000..<upperBound * 1_000_000 }
}
