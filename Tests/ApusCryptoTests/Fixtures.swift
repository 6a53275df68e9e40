/// Keys and certificates of tests. None is used anywhere else.
enum Fixtures {
    /// Written by swift-crypto 4.5, as the token keys of earlier releases.
    static let p256 = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgtUefuiQ9PA8EUhod
        pHvgRMHrnbyo6fpi5ecZuRVM4xShRANCAAQKCawaWSFK6mQOzenCpPJRUaNkk2Sz
        dfpDHRiK0tpz+g4ueyDMdXiBHo9p0FvfwKi1nV10i6UiyhbfKgb2htSI
        -----END PRIVATE KEY-----
        """

    /// The public key of ``p256``, from the same.
    static let p256Public = """
        -----BEGIN PUBLIC KEY-----
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECgmsGlkhSupkDs3pwqTyUVGjZJNk
        s3X6Qx0YitLac/oOLnsgzHV4gR6PadBb38CotZ1ddIulIsoW3yoG9obUiA==
        -----END PUBLIC KEY-----
        """

    /// ``p256`` as `openssl ec` writes it.
    static let p256SEC1 = """
        -----BEGIN EC PRIVATE KEY-----
        MHcCAQEEILVHn7okPTwPBFIaHaR74ETB6528qOn6YuXnGbkVTOMUoAoGCCqGSM49
        AwEHoUQDQgAECgmsGlkhSupkDs3pwqTyUVGjZJNks3X6Qx0YitLac/oOLnsgzHV4
        gR6PadBb38CotZ1ddIulIsoW3yoG9obUiA==
        -----END EC PRIVATE KEY-----
        """

    /// ``p256`` with a password.
    static let p256Encrypted = """
        -----BEGIN ENCRYPTED PRIVATE KEY-----
        MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAj+bPH7k+yo0gICCAAw
        DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEJc/Lg5nOVBP/8Ij3HRIGD0EgZBu
        JqRn8V5iA0SdNmcw/QxOmczqEyQ7RT+hqEixYCjfwJn3oBsIZYMyXu3jsGMxKNJW
        UatLR8QAU6G5Xa3UFIKvSL9yMnU7PdUu1dJPTVxSKI2gmLDaeLGkBey8u0y9a97m
        cdoA6bv5inEeF8fNnGMzscZ3jSTPVv8SUi9GWxNDx4uQg97HRg5gmMloRrMhnsk=
        -----END ENCRYPTED PRIVATE KEY-----
        """

    /// A key whose curve is given by its numbers.
    static let p256Explicit = """
        -----BEGIN EC PARAMETERS-----
        MIH3AgEBMCwGByqGSM49AQECIQD/////AAAAAQAAAAAAAAAAAAAAAP//////////
        /////zBbBCD/////AAAAAQAAAAAAAAAAAAAAAP///////////////AQgWsY12Ko6
        k+ez671VdpiGvGUdBrDMU7D2O848PifSYEsDFQDEnTYIhucEk2pmeOETnSa3gZ9+
        kARBBGsX0fLhLEJH+Lzm5WOkQPJ3A32BLeszoPShOUXYmMKWT+NC4v4af5uO5+tK
        fA+eFivOM1drMV7Oy7ZAaDe/UfUCIQD/////AAAAAP//////////vOb6racXnoTz
        ucrC/GMlUQIBAQ==
        -----END EC PARAMETERS-----
        -----BEGIN EC PRIVATE KEY-----
        MIIBaAIBAQQg4AYDwwtOiVOIsTs3E10JiuDbRe6dyHmmr8OGcnIWs6iggfowgfcC
        AQEwLAYHKoZIzj0BAQIhAP////8AAAABAAAAAAAAAAAAAAAA////////////////
        MFsEIP////8AAAABAAAAAAAAAAAAAAAA///////////////8BCBaxjXYqjqT57Pr
        vVV2mIa8ZR0GsMxTsPY7zjw+J9JgSwMVAMSdNgiG5wSTamZ44ROdJreBn36QBEEE
        axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54W
        K84zV2sxXs7LtkBoN79R9QIhAP////8AAAAA//////////+85vqtpxeehPO5ysL8
        YyVRAgEBoUQDQgAE2q27hb6ye0/fJ710wT8/O5OA4uyZ4ljQ2OukVZEig57W+n3O
        nxCm66x84axi16QsH7xUmQGWuQrzT2jgKJQHXQ==
        -----END EC PRIVATE KEY-----
        """

    /// A key of secp256k1.
    static let k256 = """
        -----BEGIN PRIVATE KEY-----
        MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQge9GykZJp9kCUApWmwZC2
        TA67vbpEvQV18tvPKOCZfOGhRANCAAR8uj5nvUH05e/8WnNZL822rxNZrlK4SD3L
        hmzB+h4rJNvn+FXh24DcnRzx5B7/gwXstcRFrT+xAhiyz2qmjope
        -----END PRIVATE KEY-----
        """

    /// A key of P-384.
    static let p384 = """
        -----BEGIN PRIVATE KEY-----
        MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDDw0EMEH1idkg8LaFBo
        tQpTfwkfBdjP8fpl4muGi/ECf2APgqDEBIDc7m1ypNrnA5GhZANiAARZgJAWsPUM
        UmCTvQpHef6ilkwHqlJS6TDGw1kDfSZwDhMJRsQX4Zzh79r0dknij9IbLwEWU/qB
        uj7nb2mt1EjBXGn1Kns/TsIdEygiqAhMXDFFOA0u8ix21GhkxZ2bQWE=
        -----END PRIVATE KEY-----
        """

    /// The certificate of ``p384``.
    static let p384Certificate = """
        -----BEGIN CERTIFICATE-----
        MIIBzzCCAVagAwIBAgIUUE9X7SHB3B5xYZFinz9KvVktcFEwCgYIKoZIzj0EAwIw
        HzEOMAwGA1UECgwFT3RoZXIxDTALBgNVBAMMBHAzODQwHhcNMjYxMTI5MTYxNDEy
        WhcNMzYxMTI2MTYxNDEyWjAfMQ4wDAYDVQQKDAVPdGhlcjENMAsGA1UEAwwEcDM4
        NDB2MBAGByqGSM49AgEGBSuBBAAiA2IABFmAkBaw9QxSYJO9Ckd5/qKWTAeqUlLp
        MMbDWQN9JnAOEwlGxBfhnOHv2vR2SeKP0hsvARZT+oG6Pudvaa3USMFcafUqez9O
        wh0TKCKoCExcMUU4DS7yLHbUaGTFnZtBYaNTMFEwHQYDVR0OBBYEFJ8QFCddS/uL
        2i/C4F45+Ai46LT1MB8GA1UdIwQYMBaAFJ8QFCddS/uL2i/C4F45+Ai46LT1MA8G
        A1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDZwAwZAIwBGT0sxZRYURPXAno+hW8
        eSvp9sBglduVK6+WLRZtZUAkUXMRlwjCCJlaLVzR5+O2AjBqVh0l0iwJw1X+RWST
        3QFusU4P3EzblG4VQdpxx4ZN13p0fIQGpih+Bqlm0ElS8qo=
        -----END CERTIFICATE-----
        """

    /// A key of Ed25519 in PKCS#8.
    static let ed25519 = """
        -----BEGIN PRIVATE KEY-----
        MC4CAQAwBQYDK2VwBCIEID+tpbJ+A37vt75oQdqqBwDDS8oz857Z28TfNmLlR3gF
        -----END PRIVATE KEY-----
        """

    /// The certificate of ``ed25519``.
    static let ed25519Certificate = """
        -----BEGIN CERTIFICATE-----
        MIIBTzCCAQGgAwIBAgIUbh80xN1YJU83eKrvxGva1XWYB5kwBQYDK2VwMB0xDjAM
        BgNVBAoMBU90aGVyMQswCQYDVQQDDAJlZDAeFw0yNjExMjkxNjE0MTJaFw0zNjEx
        MjYxNjE0MTJaMB0xDjAMBgNVBAoMBU90aGVyMQswCQYDVQQDDAJlZDAqMAUGAytl
        cAMhAFkKXGaBgY5IccX/IA1PmHmy1QiDNJ7w97+EHi0C5Q28o1MwUTAdBgNVHQ4E
        FgQUV5BslaJV6HUVk+SjWtecjKDUBiowHwYDVR0jBBgwFoAUV5BslaJV6HUVk+Sj
        WtecjKDUBiowDwYDVR0TAQH/BAUwAwEB/zAFBgMrZXADQQDY2V0Hje0U4UXNH3gG
        tmh0+o/KSBPiLLZbe3ZvgSC6KSsnNwHZq9mQOBvrQ+BD0nfmPCb5ttOYbAIXpcAw
        LOEJ
        -----END CERTIFICATE-----
        """

    /// A key of RSA in PKCS#8.
    static let rsa = """
        -----BEGIN PRIVATE KEY-----
        MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSiAgEAAoIBAQCz1ZMYVqpHwIF1
        JVM4ge0LId+KF3mlKXcvYJFUfIoyCg8skG4vmjC6Y7E6WZeImuQQ6T6haa+O/zI6
        C0Ay8xHFcbFS5Xozo+wgRmmGj9lrCNsBP50OZ2sa7LHV+gLFkeMsVNh3wDCwOumd
        g5fNlYELgg+yV4SuszQMvKLeC5L5YwK9eptt8cyquRsX5BXAqFhk0zKRA3Egukeo
        Wmg069K9NbGgfewoNwwZD364nC3ZudX1cV2AG4E4WxtK7D4iFVFNFO+9pWOLoGQa
        N60CR16r57is8tZJEmVEXxZ63t49MN4pZBZJdKvncMgLpDziiSQjgWMYVLvjsfNH
        YU21YYCBAgMBAAECggEAC8Cqc02+pR/MlhZRYQEEt9SH4mN0XLngAyWhec8FzQ1h
        Pn1V5iCCjLvVKkYOpCvTOdO0dyIMCiFda/OuR2YhRDEQ8KT0nolY9icD4HpoMBmN
        DoDUx8s0cbcETEKhib3mBdCpsPHLfMjs2ZFvC014+IKQegxELJKjlS2Cy1YgTdHx
        UKptUmUZ2IOJS61XkgZWWDTQBAkFO6AIfIE+lwYTTK0cfYY5q1t15sl5k6h4Aq7+
        EKEyTsq4hPlejgPudmYh9MRs15Er8NQ4yKOrtJGuNlVTj+XW1bSkps1/IF5el+bE
        RoLmljnec43sQ+dQga0FCqjbkb+4XCIYgEbjZ/tWXQKBgQD5PoTjUOayASWpG1vJ
        rhLHjX2l4gf+wXjZeCsTfU8qSSE0y0zyUhKDRPV6zw6QWKB6XCg5/5gDPq02fj70
        VQHc9FUeYOrrxi4f8RdenTYaoVannrBz7fNCQNI4n8VU32NYL1uo9IsnDUm3TpNh
        XaYMqyHW522mkR1q91Z/mp2iIwKBgQC4tW1DJuFeleNuNUbkhueMvoUN6v2F0aRJ
        CcSiOXR48z+h6aZqK+gXIQEwQSzORLrf5R6lJXr8aNw+nNS1beJ7DApBnOv84bVa
        SMcbZUiRNH5snJw8fPu7GtonrmvItSqyMNUjNTTKR+4N8I3QhZKoE2z7giyXNtGz
        RBCP4/hjCwKBgCuUbeHdLGklYDNgUD1ETY5MxBJ0Ihe+NmY357hBqczn+oFjprGb
        /harwQxXFeHRTUX3xSTW9vpiRCEKE/HexzOeGR/1rD3Lahc1rXNio6omWaN3UL0E
        dws3kEpMTVGYuaMarLkvAQG0BhaiC4zztevzJDiSQI7mQrGIS7yGCVfnAoGAXcvD
        sFYOG/oBg/WKCoJ3EwGsj2TFWS8cPfq336lNfB4KMi50U3X4ZcZc1CREnHpKa2fu
        J+7ghUy6ixEY8wjZ+aIjky4cqE31yeMrOL42G4aMrJrau9y7+EeqgHwSP9m/1Lz3
        fumF5TKhsHJ3kWxDDRbQQOfZvPAZjO8Deg5KFAECgYBmnjNjUC1LhgABAAv85Khs
        dEXpWfyCMR7HzYTfjz3qOZrP78ZqRCBo40NkuTYWphPN8lIJzSWc9Rcken7xpmXM
        hkNltdzPlmmuFo8Q7gujGz79+hiMHK0SrSNAoPd3r6jX7F7tBEfiUcSsKFCXLaGJ
        UKL87XzXwR3BBGESnyZFiQ==
        -----END PRIVATE KEY-----
        """

    /// ``rsa`` in PKCS#1.
    static let rsaPKCS1 = """
        -----BEGIN RSA PRIVATE KEY-----
        MIIEogIBAAKCAQEAs9WTGFaqR8CBdSVTOIHtCyHfihd5pSl3L2CRVHyKMgoPLJBu
        L5owumOxOlmXiJrkEOk+oWmvjv8yOgtAMvMRxXGxUuV6M6PsIEZpho/ZawjbAT+d
        DmdrGuyx1foCxZHjLFTYd8AwsDrpnYOXzZWBC4IPsleErrM0DLyi3guS+WMCvXqb
        bfHMqrkbF+QVwKhYZNMykQNxILpHqFpoNOvSvTWxoH3sKDcMGQ9+uJwt2bnV9XFd
        gBuBOFsbSuw+IhVRTRTvvaVji6BkGjetAkdeq+e4rPLWSRJlRF8Wet7ePTDeKWQW
        SXSr53DIC6Q84okkI4FjGFS747HzR2FNtWGAgQIDAQABAoIBAAvAqnNNvqUfzJYW
        UWEBBLfUh+JjdFy54AMloXnPBc0NYT59VeYggoy71SpGDqQr0znTtHciDAohXWvz
        rkdmIUQxEPCk9J6JWPYnA+B6aDAZjQ6A1MfLNHG3BExCoYm95gXQqbDxy3zI7NmR
        bwtNePiCkHoMRCySo5UtgstWIE3R8VCqbVJlGdiDiUutV5IGVlg00AQJBTugCHyB
        PpcGE0ytHH2GOatbdebJeZOoeAKu/hChMk7KuIT5Xo4D7nZmIfTEbNeRK/DUOMij
        q7SRrjZVU4/l1tW0pKbNfyBeXpfmxEaC5pY53nON7EPnUIGtBQqo25G/uFwiGIBG
        42f7Vl0CgYEA+T6E41DmsgElqRtbya4Sx419peIH/sF42XgrE31PKkkhNMtM8lIS
        g0T1es8OkFigelwoOf+YAz6tNn4+9FUB3PRVHmDq68YuH/EXXp02GqFWp56wc+3z
        QkDSOJ/FVN9jWC9bqPSLJw1Jt06TYV2mDKsh1udtppEdavdWf5qdoiMCgYEAuLVt
        QybhXpXjbjVG5IbnjL6FDer9hdGkSQnEojl0ePM/oemmaivoFyEBMEEszkS63+Ue
        pSV6/GjcPpzUtW3iewwKQZzr/OG1WkjHG2VIkTR+bJycPHz7uxraJ65ryLUqsjDV
        IzU0ykfuDfCN0IWSqBNs+4IslzbRs0QQj+P4YwsCgYArlG3h3SxpJWAzYFA9RE2O
        TMQSdCIXvjZmN+e4QanM5/qBY6axm/4Wq8EMVxXh0U1F98Uk1vb6YkQhChPx3scz
        nhkf9aw9y2oXNa1zYqOqJlmjd1C9BHcLN5BKTE1RmLmjGqy5LwEBtAYWoguM87Xr
        8yQ4kkCO5kKxiEu8hglX5wKBgF3Lw7BWDhv6AYP1igqCdxMBrI9kxVkvHD36t9+p
        TXweCjIudFN1+GXGXNQkRJx6Smtn7ifu4IVMuosRGPMI2fmiI5MuHKhN9cnjKzi+
        NhuGjKya2rvcu/hHqoB8Ej/Zv9S8937pheUyobByd5FsQw0W0EDn2bzwGYzvA3oO
        ShQBAoGAZp4zY1AtS4YAAQAL/OSobHRF6Vn8gjEex82E34896jmaz+/GakQgaOND
        ZLk2FqYTzfJSCc0lnPUXJHp+8aZlzIZDZbXcz5ZprhaPEO4Loxs+/foYjBytEq0j
        QKD3d6+o1+xe7QRH4lHErChQly2hiVCi/O1818EdwQRhEp8mRYk=
        -----END RSA PRIVATE KEY-----
        """

    /// The certificate of ``rsa``.
    static let rsaCertificate = """
        -----BEGIN CERTIFICATE-----
        MIIDHTCCAgWgAwIBAgIUNBRBn2xcAG6x8nSf2LAnm7cbjtgwDQYJKoZIhvcNAQEL
        BQAwHjEOMAwGA1UECgwFT3RoZXIxDDAKBgNVBAMMA3JzYTAeFw0yNjExMjkxNjE0
        MTJaFw0zNjExMjYxNjE0MTJaMB4xDjAMBgNVBAoMBU90aGVyMQwwCgYDVQQDDANy
        c2EwggEiMA0GCSqGSIb3DQEBAQUAA4IBDwAwggEKAoIBAQCz1ZMYVqpHwIF1JVM4
        ge0LId+KF3mlKXcvYJFUfIoyCg8skG4vmjC6Y7E6WZeImuQQ6T6haa+O/zI6C0Ay
        8xHFcbFS5Xozo+wgRmmGj9lrCNsBP50OZ2sa7LHV+gLFkeMsVNh3wDCwOumdg5fN
        lYELgg+yV4SuszQMvKLeC5L5YwK9eptt8cyquRsX5BXAqFhk0zKRA3EgukeoWmg0
        69K9NbGgfewoNwwZD364nC3ZudX1cV2AG4E4WxtK7D4iFVFNFO+9pWOLoGQaN60C
        R16r57is8tZJEmVEXxZ63t49MN4pZBZJdKvncMgLpDziiSQjgWMYVLvjsfNHYU21
        YYCBAgMBAAGjUzBRMB0GA1UdDgQWBBRRrhfyOvpH9tDzD2BSzrMuOXk7XDAfBgNV
        HSMEGDAWgBRRrhfyOvpH9tDzD2BSzrMuOXk7XDAPBgNVHRMBAf8EBTADAQH/MA0G
        CSqGSIb3DQEBCwUAA4IBAQBxm0lgu6Ss/G5+N3Up8avoXWys9QVY+n1zSCSliosC
        nJQf/15/ZTsJnf3qZ8Wds3crx+GG7QiNxGjLIl8+vdp9BhKjdiReNkySYxggIbRQ
        x9uIx1xpgwdqRtebb3ItZmTFO4mi7Wlx7H9nfVxQFZYXG6FyaGtAVixvM1Kv8+Q9
        yILNPepozq44n9DpRKwCBgIeXGHt00BHbLB5Ly8NsyGMNqP8BSbCM2ccNqQKakp6
        ZYDz1iCPNQhlYkMssp9QECc+Tl+OGP1ovSHyCxyEzcrVY7pnWd/HJdtteWXp9PEm
        BXjIe2ilulURosPRt7ITMU6idjkkhiJ/iWP2Q9MJNmFm
        -----END CERTIFICATE-----
        """
}
