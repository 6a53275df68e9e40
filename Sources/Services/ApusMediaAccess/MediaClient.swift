package import ApusChannels
package import ApusClientAPI
package import ApusCore
package import ApusMedia
package import ApusSessions
import NIOCore

/// A request to publish. The edge makes the stream's publisher once the channel is known. When the publisher learns
/// that its stream has failed, the edge calls ``MediaClient/forget(_:)``.
package struct PublishAsk: Sendable {
    package var target: MediaTarget
    package var epoch: UInt32
    package var instance: UInt64
    package var oldest: UInt64
    package var resumes: Bool
    package var grant: [UInt8]
    package var sink: @Sendable (ChannelID) -> any PublisherSink
    /// Called at most once, if the stream is not opened. The sink is not called then.
    package var fail: @Sendable (ApusError) -> Void

    package init(
        _ target: MediaTarget, epoch: UInt32, instance: UInt64, oldest: UInt64, resumes: Bool, grant: [UInt8],
        sink: @escaping @Sendable (ChannelID) -> any PublisherSink, fail: @escaping @Sendable (ApusError) -> Void
    ) {
        (self.target, self.epoch, self.instance, self.oldest) = (target, epoch, instance, oldest)
        (self.resumes, self.grant, self.sink, self.fail) = (resumes, grant, sink, fail)
    }

    /// True if the cluster assigned the run that it continues.
    fileprivate var continuesRun: Bool { resumes && epoch != 0 }
}

/// A request to play.
package struct PlayAsk: Sendable {
    package enum Target: Sendable, Hashable {
        case source(ChannelID, of: DeviceID)
        /// What the client's part in the owner permits.
        case part(ChannelOwner)
    }

    package var target: Target
    /// As in ``ApusChannels/ChannelService/play(_:of:sink:after:completion:)``.
    package var after: FramePosition?
    package var grant: [UInt8]
    package var sink: @Sendable (ChannelID) -> any PlayerSink
    /// Called at most once, if the stream is not opened.
    package var fail: @Sendable (ApusError) -> Void

    package init(
        _ target: Target, after: FramePosition?, grant: [UInt8],
        sink: @escaping @Sendable (ChannelID) -> any PlayerSink, fail: @escaping @Sendable (ApusError) -> Void
    ) {
        (self.target, self.after, self.grant, self.sink, self.fail) = (target, after, grant, sink, fail)
    }
}

/// A client's receiver of one channel.
package protocol PlayerSink: FrameSink {
    /// The stream is permitted. The sink answers its request, and then opens the receipt: no frame comes before that.
    func opened(_ receipt: Receipt)
}

/// The media of one client's connection: the shell of ``MediaClientStateMachine``.
///
/// Concurrency model: confined to the connection's event loop.
package final class MediaClient: @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    /// A channel that the client publishes.
    package struct Published {
        package let channel: ChannelID
        package let handle: PublishHandle
        fileprivate let sink: any PublisherSink
    }

    /// A channel that the client plays.
    package struct Played {
        package let channel: ChannelID
        package let receipt: Receipt
        fileprivate let sink: any PlayerSink
    }

    package private(set) var published: [StreamNumber: Published] = [:]
    package private(set) var played: [StreamNumber: Played] = [:]
    private let access: MediaAccess
    private let session: Session
    private unowned let connection: any ClientConnection
    private let eventLoop: any EventLoop
    private let spawn: (@escaping @Sendable () async -> Void) -> Void
    private let onStreams: () -> Void
    private var machine: MediaClientStateMachine<PublishAsk>
    private var isClosed = false

    /// - Parameters:
    ///   - isConfirmed: the owner of the identity has confirmed the session as the newest (IV-A5).
    ///   - spawn: runs work of the connection that waits for other nodes, on its event loop.
    ///   - onStreams: called after ``published`` or ``played`` has changed.
    package init(
        _ access: MediaAccess, _ session: Session, on connection: any ClientConnection, isConfirmed: Bool,
        streamsMax: Int, spawn: @escaping (@escaping @Sendable () async -> Void) -> Void,
        onStreams: @escaping () -> Void
    ) {
        (self.access, self.session, eventLoop) = (access, session, connection.eventLoop)
        (self.spawn, self.onStreams) = (spawn, onStreams)
        self.connection = connection
        machine = MediaClientStateMachine(device: session.device, isConfirmed: isConfirmed, streamsMax: streamsMax)
    }

    package var streamCount: Int { published.count + played.count }

    // MARK: - Publishing

    /// Opens a stream of the client, now or once its session is confirmed.
    package func publish(_ ask: PublishAsk) {
        guard !isClosed else { return }
        var granted: ChannelID?
        if case .part(let owner) = ask.target, ask.continuesRun {
            granted = self.granted(ask.grant, owner, isPublished: true)
        }
        switch machine.publish(
            ask.target, continuesRun: ask.continuesRun, granted: granted, streamCount: streamCount, ask)
        {
        case .refuse(let error): ask.fail(error)
        case .wait: break
        case .publish(let channel, let isConfirmed): open(channel, ask, isConfirmed: isConfirmed)
        case .resume(let owner, let channel, let isConfirmed):
            resume(owner)
            open(channel, ask, isConfirmed: isConfirmed)
        case .ask(let owner):
            self.ask(owner) { client, result in
                switch result.map(\.publishes) {
                case .failure(let error): ask.fail(error)
                case .success(nil): ask.fail(ApusError(.notAllowed, "the client may only play"))
                case .success(let channel?): client.open(channel, ask, isConfirmed: true)
                }
            }
        }
    }

    /// - Parameter isConfirmed: it may start a new run. Otherwise it continues only the one that it has.
    private func open(_ channel: ChannelID, _ ask: PublishAsk, isConfirmed: Bool) {
        let offer = PublishOffer(
            epoch: ask.epoch, instance: ask.instance, oldest: ask.oldest, resumes: ask.resumes,
            isConfirmed: isConfirmed)
        let sink = ask.sink(channel)
        access.channels.publish(channel, of: session.account, offer: offer, sink: sink) { [self] result in
            switch result {
            case .failure where !isConfirmed && channel.device != nil: hold(ask)
            case .failure(let error): ask.fail(error)
            case .success(let handle):
                guard !isClosed else { return handle.close() }
                if !isConfirmed, machine.mayStartRuns(of: channel.owner) { handle.confirm() }
                let stream = Published(channel: channel, handle: handle, sink: sink)
                published.updateValue(stream, forKey: handle.stream)?.handle.close()
                onStreams()
                check(channel.owner)
            }
        }
    }

    private func hold(_ ask: PublishAsk) {
        guard !isClosed else { return }
        switch machine.hold(ask) {
        case .again: publish(ask)
        case .wait: break
        case .refuse(let error): ask.fail(error)
        }
    }

    /// Ends the client's streams to a target, and its requests for them.
    package func unpublish(_ target: MediaTarget) {
        for (stream, entry) in published {
            switch target {
            case .source(let source): if entry.channel.device != nil, entry.channel.source == source { forget(stream) }
            case .part(let owner): if entry.channel.owner == owner { forget(stream) }
            }
        }
        for ask in machine.withdraw(where: { $0.target == target }) { ask.fail(ApusError(.cancelled)) }
    }

    /// The stream has ended.
    package func forget(_ stream: StreamNumber) {
        published.removeValue(forKey: stream)?.handle.close()
        onStreams()
    }

    // MARK: - Playing

    /// Lets the client play a channel, if it may.
    package func play(_ ask: PlayAsk) {
        guard !isClosed else { return }
        let decision: MediaClientStateMachine<PublishAsk>.OnPlay
        switch ask.target {
        case .source(let channel, let device):
            let isGranted =
                !ask.grant.isEmpty && access.sessions.isGranted(ask.grant, session, toPlay: channel, of: device)
            decision = machine.play(channel, of: device, isGranted: isGranted, streamCount: streamCount)
        case .part(let owner):
            decision = machine.play(
                partOf: owner, granted: granted(ask.grant, owner, isPublished: false), streamCount: streamCount)
        }
        switch decision {
        case .refuse(let error): ask.fail(error)
        case .play(let channel): start(channel, ask)
        case .resume(let owner, let channel):
            resume(owner)
            start(channel, ask)
        case .inspect(let device, let control):
            guard case .source(let channel, _) = ask.target else { return }
            inspect(device, control: control) { client, error in
                if let error { ask.fail(error) } else { client.start(channel, ask) }
            }
        case .ask(let owner):
            self.ask(owner) { client, result in
                switch result.map(\.plays.first) {
                case .failure(let error): ask.fail(error)
                case .success(nil): ask.fail(ApusError(.notAllowed, "the client may only publish"))
                case .success(let channel?): client.start(channel, ask)
                }
            }
        }
    }

    private func start(_ channel: ChannelID, _ ask: PlayAsk) {
        guard !isClosed else { return }
        guard !played.values.contains(where: { $0.channel == channel }) else {
            return ask.fail(ApusError(.connectionExists, "this connection already plays that channel"))
        }
        let sink = ask.sink(channel)
        access.channels.play(channel, of: session.account, sink: sink, after: ask.after) { [self] result in
            switch result {
            case .failure(let error): ask.fail(error)
            case .success(let receipt):
                guard !isClosed, let stream = receipt.stream else { return receipt.close() }
                sink.opened(receipt)
                played.updateValue(Played(channel: channel, receipt: receipt, sink: sink), forKey: stream)?
                    .receipt.close()
                onStreams()
                check(channel.owner)
            }
        }
    }

    /// Ends a stream that the client plays.
    package func stop(_ stream: StreamNumber) {
        played.removeValue(forKey: stream)?.receipt.close()
        onStreams()
    }

    /// The connection accepts bytes again.
    package func becameWritable() {
        for stream in played.values { stream.receipt.becameWritable() }
    }

    // MARK: - Owners

    /// The owner of the identity has confirmed the session as the newest. Opens what waited for that.
    package func sessionConfirmed() {
        guard let waiting = machine.sessionConfirmed() else { return }
        for stream in published.values where machine.mayStartRuns(of: stream.channel.owner) { stream.handle.confirm() }
        for ask in waiting { publish(ask) }
    }

    /// The grant of an open stream, with which the client continues at another node. In a call, it is the grant that
    /// the client has presented until the call has answered, and a new one after that.
    package func grant(for channel: ChannelID, isPublished: Bool, earlier: [UInt8]) -> [UInt8] {
        if let device = channel.device {
            return isPublished ? [] : access.sessions.grant(session, toPlay: channel, of: device)
        }
        guard let right = machine.right(to: channel.owner) else { return earlier }
        return access.sessions.grant(session, channel: channel, isPublished: isPublished, peers: right.devices)
    }

    /// The connection has ended. Nothing is called after this.
    package func closed() {
        isClosed = true
        for stream in played.values { stream.receipt.close() }
        for stream in published.values { stream.handle.close() }
        played.removeAll()
        published.removeAll()
        machine.closed()
        access.closed(connection)
    }

    /// The channel of the owner that the grant permits to publish, or to play; nil if it permits none.
    private func granted(_ grant: [UInt8], _ owner: ChannelOwner, isPublished: Bool) -> ChannelID? {
        guard !grant.isEmpty, let authority = access.authority(of: owner) else { return nil }
        return authority.channels(of: owner).first { channel in
            access.sessions.isGranted(grant, session, channel: channel, isPublished: isPublished)
        }
    }

    private func resume(_ owner: ChannelOwner) {
        access.authority(of: owner)?.resume(owner, for: session, on: connection, onChange: onChange(of: owner))
    }

    private func inspect(
        _ device: DeviceID, control: Bool, _ body: @escaping @Sendable (MediaClient, ApusError?) -> Void
    ) {
        let (sessions, session, eventLoop) = (access.sessions, session, eventLoop)
        spawn { [self] in
            let result = await sessions.inspect(device, for: session, subscribe: false, control: control)
            eventLoop.execute { [self] in
                machine.answered()
                guard !isClosed else { return }
                if case .failure(let error) = result { body(self, error) } else { body(self, nil) }
            }
        }
    }

    /// Asks the owner's authority.
    private func ask(
        _ owner: ChannelOwner, _ body: @escaping @Sendable (MediaClient, Result<MediaRight, ApusError>) -> Void
    ) {
        guard let authority = access.authority(of: owner) else {
            machine.answered()
            return body(self, .failure(ApusError(.notAllowed, "this node has no \(owner.kind)s")))
        }
        let (session, connection, eventLoop) = (session, connection, eventLoop)
        let changed = onChange(of: owner)
        spawn { [self] in
            let result: Result<MediaRight, ApusError>
            do throws(ApusError) {
                result = .success(try await authority.open(owner, for: session, on: connection, onChange: changed))
            } catch {
                result = .failure(error)
            }
            eventLoop.execute { [self] in
                switch result {
                case .failure: machine.answered()
                case .success(let right): machine.answered(by: owner, with: right)
                }
                guard !isClosed else { return }
                if case .success = result, !authority.isOpen(owner, on: connection) {
                    machine.ended(owner)
                    return body(self, .failure(authority.endedError))
                }
                body(self, result)
            }
        }
    }

    /// Ends streams that were opened while the client's part in the owner ended.
    private func check(_ owner: ChannelOwner) {
        guard let authority = access.authority(of: owner), !authority.isOpen(owner, on: connection) else { return }
        changed(owner, .ended(authority.endedError))
    }

    private func onChange(of owner: ChannelOwner) -> @Sendable (MediaChange) -> Void {
        { [weak self, eventLoop] change in
            eventLoop.execute { [weak self] in self?.changed(owner, change) }
        }
    }

    private func changed(_ owner: ChannelOwner, _ change: MediaChange) {
        guard !isClosed else { return }
        switch change {
        case .confirmed(let right):
            guard access.authority(of: owner)?.isOpen(owner, on: connection) ?? false else { return }
            machine.confirmed(owner, right)
            guard machine.mayStartRuns(of: owner) else { return }
            for stream in published.values where stream.channel.owner == owner { stream.handle.confirm() }
        case .ended(let error):
            machine.ended(owner)
            for (number, stream) in published where stream.channel.owner == owner {
                published.removeValue(forKey: number)?.handle.close()
                stream.sink.publishFailed(number, error)
            }
            for (number, stream) in played where stream.channel.owner == owner {
                played.removeValue(forKey: number)?.receipt.close()
                stream.sink.streamChanged(number, to: .ended(error))
            }
            onStreams()
        }
    }
}
