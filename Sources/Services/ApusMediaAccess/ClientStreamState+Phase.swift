package import ApusChannels
package import ApusContract
import ApusCore

extension ClientStreamState {
    /// What a client receives about its stream.
    package init(_ stream: StreamNumber, _ phase: StreamPhase) {
        self.init()
        self.stream = stream
        switch phase {
        case .live: state = .live
        case .waiting: state = .waiting
        case .skipped(let count): (state, skipped) = (.skipped, count)
        case .ended(let error): (state, failure) = (.ended, ClientFailure(error))
        }
    }
}
