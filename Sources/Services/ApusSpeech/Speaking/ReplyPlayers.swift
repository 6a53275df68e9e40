import ApusChannels
import ApusCore
import ApusMedia
import ApusMediaAccess
import NIOCore
import Synchronization

/// The spoken replies that this node plays, one for each device.
///
/// Concurrency model: any thread. A `Mutex` guards the table.
final class ReplyPlayers: Sendable {
    private struct Playing {
        let text: String
        let player: FramePlayer
    }

    /// How long the reply's channel stays open after its end, for a device that reconnects.
    private static let tail = Duration.seconds(5)

    private let channels: ChannelService
    private let group: any EventLoopGroup
    private let playing = Mutex<[DeviceID: Playing]>([:])

    init(_ channels: ChannelService, on group: any EventLoopGroup) {
        (self.channels, self.group) = (channels, group)
    }

    /// Plays a reply in place of the previous one.
    ///
    /// - Parameters:
    ///   - elapsed: what the device has played already.
    ///   - isComplete: the sound is all of the reply. Otherwise ``finish(_:_:_:)`` follows.
    @discardableResult
    func play(
        _ spoken: Spoken, _ text: String, to device: DeviceID, of account: AccountID, elapsed: Duration = .zero,
        isComplete: Bool = true
    ) -> FramePlayer {
        let player = FramePlayer(
            isComplete ? spoken.frames : [spoken.configuration] + spoken.frames(from: 0), isComplete: isComplete,
            to: ChannelID(replyTo: device), of: account, at: channels, on: group.next())
        playing.withLock { $0.updateValue(Playing(text: text, player: player), forKey: device) }?.player.stop()
        player.start(elapsed: elapsed)
        if isComplete { end(player, device, after: spoken.duration + Self.tail) }
        return player
    }

    /// Whether a reply is still played.
    func isPlaying(_ player: FramePlayer, _ device: DeviceID) -> Bool {
        playing.withLock { $0[device]?.player === player }
    }

    /// No more sound follows.
    ///
    /// - Parameter spoken: all of it.
    func finish(_ player: FramePlayer, _ device: DeviceID, _ spoken: Spoken) {
        player.append([spoken.end(at: spoken.samples.count)], isLast: true)
        end(player, device, after: spoken.duration + Self.tail)
    }

    /// Ends a reply some time after its last frame, which a pause delays.
    private func end(_ player: FramePlayer, _ device: DeviceID, after time: Duration) {
        player.eventLoop.scheduleTask(in: TimeAmount(time)) { [weak self, weak player] in
            guard let self, let player else { return }
            guard player.timeLeft == .zero else { return self.end(player, device, after: player.timeLeft + Self.tail) }
            self.playing.withLock { all in
                if all[device]?.player === player { all[device] = nil }
            }
            player.stop()
        }
    }

    func stop(_ device: DeviceID) { playing.withLock { $0.removeValue(forKey: device) }?.player.stop() }

    func pause(_ device: DeviceID) { playing.withLock { $0[device] }?.player.pause() }

    /// A reply that is paused continues.
    func resume(_ device: DeviceID) { playing.withLock { $0[device] }?.player.resume() }

    /// True if the microphone has heard the reply, and not a person.
    func isEcho(_ heard: String, _ device: DeviceID) -> Bool {
        guard let text = playing.withLock({ $0[device]?.text }) else { return false }
        return ReplyEcho.isEcho(heard, of: text)
    }
}

/// Tells a reply that the device's own microphone hears from what a person says.
package enum ReplyEcho {
    /// A sentence of fewer words is a person's, also if the reply has them.
    private static let wordCountMin = 3

    /// True if the words are several ones of the reply, in their order.
    package static func isEcho(_ heard: String, of reply: String) -> Bool {
        let (heard, reply) = (words(of: heard), words(of: reply))
        guard heard.count >= wordCountMin, heard.count <= reply.count else { return false }
        return (0...reply.count - heard.count).contains { reply[$0...].starts(with: heard) }
    }

    private static func words(of text: String) -> [ExactText] {
        text.lowercased().split { !$0.isLetter && !$0.isNumber && $0 != "'" }.map { ExactText(String($0)) }
    }
}
