import ApusCore
import HTTPTypes

/// The names of requests that are carried out, and of responses.
package enum EVSName: String {
    case stateSync = "system.state_sync"
    case exception = "system.exception"
    case textIn = "recognizer.text_in"
    /// An addition of this project: the same name as that of custom responses.
    case customEvent = "interceptor.custom"
    case speechProgress = "audio_player.tts.progress_sync"
    case playbackProgress = "audio_player.playback.progress_sync"
    case ringProgress = "audio_player.ring.progress_sync"

    package static let ping = "system.ping"
    package static let error = "system.error"
    package static let custom = "interceptor.custom"
    package static let audioOut = "audio_player.audio_out"
    package static let expectReply = "recognizer.expect_reply"

    /// The code of an error that devices react to. From 500 on they end what they record.
    static func code(of code: ErrorCode) -> Int {
        switch Problem.status(of: code).code {
        case 401: 401
        case 403: 403
        case 429, 503, 504: 503
        case 500...: 500
        default: 400
        }
    }
}
