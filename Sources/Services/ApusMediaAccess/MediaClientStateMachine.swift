package import ApusCore

/// What a client asks to publish.
package enum MediaTarget: Sendable, Hashable {
    /// A source of the client itself, which is a device.
    case source(UInt16)
    /// The client's part in a call, or in another owner of channels.
    case part(ChannelOwner)
}

/// What a client may publish and play, and what waits until its session is confirmed.
///
/// A resumed session may have been superseded. Until the owner of its identity answers, it continues only the runs that
/// it already has, so a failover from a dead node needs no request to the owner. Anything new waits. In the same way, a
/// client with a grant continues in a call before the call answers.
///
/// Bounded: what waits, and what is being asked, each by the limit of streams.
///
/// Pure value: confined to its owner. `Ask` is a request to publish.
package struct MediaClientStateMachine<Ask> {
    package enum OnPublish {
        /// Open the stream. Unless it is confirmed, it may only continue its run.
        case publish(ChannelID, isConfirmed: Bool)
        /// The same, after the owner's authority is notified of the client and its grant.
        case resume(ChannelOwner, ChannelID, isConfirmed: Bool)
        /// Ask the owner's authority, then ``answered(by:with:)``.
        case ask(ChannelOwner)
        /// The machine keeps the request.
        case wait
        case refuse(ApusError)
    }

    package enum OnPlay {
        case play(ChannelID)
        /// The same, after the owner's authority is notified of the client and its grant.
        case resume(ChannelOwner, ChannelID)
        /// Ask the owner of the device, then ``answered()``.
        case inspect(DeviceID, control: Bool)
        /// Ask the owner's authority, then ``answered(by:with:)``.
        case ask(ChannelOwner)
        case refuse(ApusError)
    }

    package enum OnHold {
        /// The session is confirmed by now.
        case again
        case wait
        case refuse(ApusError)
    }

    private let device: DeviceID?
    private let streamsMax: Int
    private var isConfirmed: Bool
    private var held: [Ask] = []
    private var askingCount = 0
    /// By their answers.
    private var rights: [ChannelOwner: MediaRight] = [:]

    /// - Parameters:
    ///   - device: the client, if it is a device.
    ///   - isConfirmed: the owner of the identity has confirmed the session as the newest (IV-A5).
    package init(device: DeviceID?, isConfirmed: Bool, streamsMax: Int) {
        (self.device, self.isConfirmed, self.streamsMax) = (device, isConfirmed, streamsMax)
    }

    // MARK: - Publishing

    /// - Parameters:
    ///   - continuesRun: the cluster assigned a run to the client earlier, which it continues.
    ///   - granted: the channel that the client's grant permits to publish.
    ///   - streamCount: the client's streams.
    package mutating func publish(
        _ target: MediaTarget, continuesRun: Bool, granted: ChannelID?, streamCount: Int, _ ask: Ask
    ) -> OnPublish {
        switch target {
        case .source(let source):
            guard let device else {
                return .refuse(ApusError(.notAllowed, "only a device publishes, and who takes part in a call"))
            }
            let channel = ChannelID(device: device, source: source)
            guard !channel.isReply else {
                return .refuse(ApusError(.notAllowed, "only the cluster publishes the replies of a dialog"))
            }
            guard streamCount < streamsMax else { return .refuse(ApusError(.tooManyStreams)) }
            guard isConfirmed || continuesRun else { return keep(ask) }
            return .publish(channel, isConfirmed: isConfirmed)
        case .part(let owner):
            guard streamCount < streamsMax else { return .refuse(ApusError(.tooManyStreams)) }
            if continuesRun, let granted { return .resume(owner, granted, isConfirmed: mayStartRuns(of: owner)) }
            // A session that was superseded publishes nothing new.
            guard isConfirmed else { return keep(ask) }
            if let error = takeTurn() { return .refuse(error) }
            return .ask(owner)
        }
    }

    /// A stream of a device that is not confirmed cannot be opened: it waits until it is.
    package mutating func hold(_ ask: Ask) -> OnHold {
        guard !isConfirmed else { return .again }
        guard held.count < streamsMax else {
            return .refuse(ApusError(.overloaded, "this connection has too many requests in progress"))
        }
        held.append(ask)
        return .wait
    }

    private mutating func keep(_ ask: Ask) -> OnPublish {
        switch hold(ask) {
        case .again, .wait: .wait
        case .refuse(let error): .refuse(error)
        }
    }

    /// The client takes requests back. Returns those that waited.
    package mutating func withdraw(where isWithdrawn: (Ask) -> Bool) -> [Ask] {
        let withdrawn = held.filter(isWithdrawn)
        held.removeAll(where: isWithdrawn)
        return withdrawn
    }

    /// True if a stream of the owner may start a new run.
    package func mayStartRuns(of owner: ChannelOwner) -> Bool {
        isConfirmed && (owner.kind == .device || rights[owner] != nil)
    }

    // MARK: - Playing

    /// - Parameter isGranted: the client's grant permits to play the channel.
    package mutating func play(
        _ channel: ChannelID, of device: DeviceID, isGranted: Bool, streamCount: Int
    ) -> OnPlay {
        guard streamCount < streamsMax else { return .refuse(ApusError(.tooManyStreams)) }
        guard !channel.isVoice else {
            return device == self.device
                ? .play(channel) : .refuse(ApusError(.notAllowed, "only the device itself plays its dialog"))
        }
        // A viewer that lost its node presents the grant that it received there, and does not wait for the owner.
        if isGranted { return .play(channel) }
        // Recordings show more than the present.
        if let error = takeTurn() { return .refuse(error) }
        return .inspect(device, control: channel.isPlayback)
    }

    /// - Parameter granted: the channel that the client's grant permits to play.
    package mutating func play(partOf owner: ChannelOwner, granted: ChannelID?, streamCount: Int) -> OnPlay {
        guard streamCount < streamsMax else { return .refuse(ApusError(.tooManyStreams)) }
        if let granted { return .resume(owner, granted) }
        if let error = takeTurn() { return .refuse(error) }
        return .ask(owner)
    }

    // MARK: - Answers

    /// Returns the refusal if too much is being asked already.
    private mutating func takeTurn() -> ApusError? {
        guard askingCount < streamsMax else {
            return ApusError(.overloaded, "this connection has too many requests in progress")
        }
        askingCount += 1
        return nil
    }

    /// The owner of a device has answered, or an authority has refused.
    package mutating func answered() { askingCount -= 1 }

    /// An authority has answered.
    package mutating func answered(by owner: ChannelOwner, with right: MediaRight) {
        answered()
        rights[owner] = right
    }

    /// The owner of the identity has confirmed the session as the newest. Returns what waited for that; nil if the
    /// session was confirmed before.
    package mutating func sessionConfirmed() -> [Ask]? {
        guard !isConfirmed else { return nil }
        isConfirmed = true
        defer { held = [] }
        return held
    }

    /// An authority has confirmed what a grant permitted.
    package mutating func confirmed(_ owner: ChannelOwner, _ right: MediaRight) { rights[owner] = right }

    /// The client's part in the owner has ended.
    package mutating func ended(_ owner: ChannelOwner) { rights[owner] = nil }

    /// Nil before an authority has answered.
    package func right(to owner: ChannelOwner) -> MediaRight? { rights[owner] }

    /// The connection has ended.
    package mutating func closed() {
        held = []
        rights = [:]
    }
}

extension MediaClientStateMachine: Sendable where Ask: Sendable {}
