import ApusCore
import ApusMediaAccess
import ApusSessions
import Synchronization

/// The clients of this node that publish and play in calls, and when the calls are asked again.
///
/// Bounded by the streams of connections: an entry is made for a stream, at most one for each call of a connection.
///
/// Concurrency model: a `Mutex`. ``Entry/onChange`` is called outside of it.
final class CallMediaTable: Sendable {
    struct Key: Hashable, Sendable {
        let connection: ObjectIdentifier
        let call: CallID
    }

    struct Entry: Sendable {
        let session: Session
        let onChange: @Sendable (MediaChange) -> Void
        /// The client has a grant.
        var isGranted: Bool
        /// The call has confirmed that the client may have media.
        var isConfirmed = false
        /// Its answer is being waited for.
        var isAsking = false
        var checkAt: MonotonicTime
    }

    private let entries = Mutex<[ObjectIdentifier: [CallID: Entry]]>([:])
    private let interval: Duration
    /// The wait before a call is asked again that did not answer.
    private static let retryDelay = Duration.seconds(1)

    init(interval: Duration) { self.interval = interval }

    /// The clients with media in calls.
    var count: Int { entries.withLock { $0.values.reduce(0) { $0 + $1.count } } }

    /// Adds an entry, if the connection has none for the call.
    ///
    /// - Parameter isGranted: the client has a grant, and the call is asked at the next check. Otherwise the caller
    ///   asks it.
    func add(
        _ key: Key, _ session: Session, isGranted: Bool, now: MonotonicTime = .now(),
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) {
        let new = Entry(
            session: session, onChange: onChange, isGranted: isGranted, checkAt: isGranted ? now : now + interval)
        entries.withLock { entries in
            let known = entries[key.connection]?[key.call] != nil
            if !known { entries[key.connection, default: [:]][key.call] = new }
            if isGranted { entries[key.connection]?[key.call]?.isGranted = true }
        }
    }

    /// The call has confirmed the entry. Returns false if the media have ended since the request.
    func confirmed(_ key: Key, _ right: MediaRight, now: MonotonicTime = .now()) -> Bool {
        let entry = entries.withLock { entries -> Entry? in
            guard let entry = entries[key.connection]?[key.call] else { return nil }
            entries[key.connection]?[key.call]?.isConfirmed = true
            entries[key.connection]?[key.call]?.isAsking = false
            entries[key.connection]?[key.call]?.checkAt = now + interval
            return entry
        }
        guard let entry else { return false }
        if !entry.isConfirmed { entry.onChange(.confirmed(right)) }
        return true
    }

    /// The media have not ended.
    func has(_ key: Key) -> Bool { entries.withLock { $0[key.connection]?[key.call] != nil } }

    /// The call did not answer. It is asked again if it has confirmed the entry before, or the client has a grant.
    /// Otherwise the client has no media yet, and the entry ends.
    func failed(_ key: Key, now: MonotonicTime = .now()) {
        entries.withLock { entries in
            guard var entry = entries[key.connection]?[key.call] else { return }
            guard entry.isConfirmed || entry.isGranted else { return Self.remove(key, &entries) }
            (entry.isAsking, entry.checkAt) = (false, now + Self.retryDelay)
            entries[key.connection]?[key.call] = entry
        }
    }

    /// Ends the media of a client in a call.
    func end(_ key: Key, _ error: ApusError) {
        let entry = entries.withLock { entries in
            defer { Self.remove(key, &entries) }
            return entries[key.connection]?[key.call]
        }
        entry?.onChange(.ended(error))
    }

    private static func remove(_ key: Key, _ entries: inout [ObjectIdentifier: [CallID: Entry]]) {
        entries[key.connection]?[key.call] = nil
        if entries[key.connection]?.isEmpty ?? false { entries[key.connection] = nil }
    }

    func closed(_ connection: ObjectIdentifier) { entries.withLock { $0[connection] = nil } }

    /// Takes the entries whose calls are due to be asked, at most this many, those that have waited longest first.
    func takeDue(_ countMax: Int, now: MonotonicTime = .now()) -> [(key: Key, session: Session)] {
        entries.withLock { entries in
            var due: [(key: Key, entry: Entry)] = []
            for (connection, calls) in entries {
                for (call, entry) in calls where !entry.isAsking && entry.checkAt <= now {
                    due.append((Key(connection: connection, call: call), entry))
                }
            }
            due.sort { $0.entry.checkAt < $1.entry.checkAt }
            return due.prefix(countMax).map { key, entry in
                entries[key.connection]?[key.call]?.isAsking = true
                return (key, entry.session)
            }
        }
    }
}
