import ApusContract
package import ApusCore
import ApusSessions

extension ChannelID {
    /// A playback of what a device has recorded (IV-C5).
    package var isPlayback: Bool { device != nil && source >= ClientPlayRequest.playbackSourceMin }

    /// What a device hears in a dialog, or the replies to it: nobody but the device plays it.
    package var isVoice: Bool { device != nil && (source == ClientPublishRequest.microphoneSource || isReply) }

    /// The replies to a device in a dialog.
    package var isReply: Bool { device != nil && source == ClientPlayRequest.replySource }

    /// What the device hears in a dialog.
    package init(microphoneOf device: DeviceID) {
        self.init(device: device, source: ClientPublishRequest.microphoneSource)
    }

    /// The replies to the device in a dialog.
    package init(replyTo device: DeviceID) { self.init(device: device, source: ClientPlayRequest.replySource) }
}

extension SessionService {
    /// What lets a viewer play a device's channel at another node. That of a playback is for this channel alone: a
    /// client that may only watch the device has no such grant.
    func grant(_ session: Session, toPlay channel: ChannelID, of device: DeviceID) -> [UInt8] {
        channel.isPlayback
            ? grant(session, channel: channel, isPublished: false, peers: [device]) : grant(session, device: device)
    }

    func isGranted(_ grant: [UInt8], _ session: Session, toPlay channel: ChannelID, of device: DeviceID) -> Bool {
        guard channel.isPlayback else { return isGranted(grant, session, device: device) }
        return session.allowedDevices?.contains(device) ?? true
            && isGranted(grant, session, channel: channel, isPublished: false)
    }
}
