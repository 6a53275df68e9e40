package import ApusCore

extension ClientFailure {
    package init(_ error: ApusError) {
        self.init()
        code = error.code.number
        message = error.message
    }
}
